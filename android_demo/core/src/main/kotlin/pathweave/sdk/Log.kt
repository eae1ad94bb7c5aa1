/** The log of the process, where the SDK says what it goes on after. */
package pathweave.sdk

import java.util.logging.Logger

internal val LOG: Logger = Logger.getLogger("pathweave")
