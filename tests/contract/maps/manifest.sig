i€Ϋ/nρN\±'V³3YeWΎB&qPΥ®Eÿο°½fDΕf=;7ΏΉXP›c—γQ5²ΠεχΜk
ϊk¬Β