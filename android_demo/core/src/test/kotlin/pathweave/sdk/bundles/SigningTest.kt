package pathweave.sdk.bundles

import java.io.File
import java.nio.file.Path
import java.security.KeyPairGenerator
import java.util.Base64
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.Contract
import pathweave.sdk.SignatureError
import pathweave.sdk.assertRefused
import pathweave.sdk.bytes
import pathweave.sdk.get
import pathweave.sdk.text

class SigningTest {
    private val vector = Contract.vectors["signature"]
    private val data = vector["manifest"].bytes
    private val signature = vector["signature"].bytes

    @Test
    fun `the signature is of exactly these bytes`() {
        Contract.key.verify(data, signature)
        val rewritten = data.decodeToString().replace("1e-05", "1.0E-5").toByteArray()
        assertFalse(rewritten.contentEquals(data))
        assertRefused<SignatureError> { Contract.key.verify(rewritten, signature) }
    }

    @Test
    fun `any other signature is refused`() {
        for (index in signature.indices) {
            val altered = signature.copyOf().also { it[index] = (it[index] + 1).toByte() }
            assertRefused<SignatureError> { Contract.key.verify(data, altered) }
        }
        assertRefused<SignatureError> { Contract.key.verify(data, signature.copyOf(63)) }
        assertRefused<SignatureError> { Contract.key.verify(data, ByteArray(0)) }
        assertRefused<SignatureError> { Contract.key.verify(data, ByteArray(64)) }
    }

    @Test
    fun `what is not an Ed25519 public key is refused`(@TempDir folder: Path) {
        val wrong = listOf(ByteArray(0), ByteArray(44), rsa()).map(::pem)
        for (pem in listOf("", "key", "-----BEGIN PUBLIC KEY-----\n%%\n") + wrong) {
            assertRefused<SignatureError> { TrustedKey.fromPem(pem) }
        }
        assertRefused<SignatureError> { TrustedKey.read(File(folder.toFile(), "none")) }
    }

    @Test
    fun `a key is read from its file, whatever its line ends`(@TempDir folder: Path) {
        for (pem in listOf(vector["public_key"].text, vector["public_key"].text.replace("\n", "\r\n"))) {
            val file = File(folder.toFile(), "key.pub").apply { writeText(pem) }
            TrustedKey.read(file).verify(data, signature)
        }
    }

    private fun rsa(): ByteArray {
        val generator = KeyPairGenerator.getInstance("RSA").apply { initialize(1024) }
        return generator.generateKeyPair().public.encoded
    }

    private fun pem(der: ByteArray): String =
        "-----BEGIN PUBLIC KEY-----\n${Base64.getMimeEncoder().encodeToString(der)}\n-----END PUBLIC KEY-----\n"
}
