package pathweave.sdk.bundles

import java.io.File
import java.nio.file.Path
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.BlobError
import pathweave.sdk.BundleError
import pathweave.sdk.Contract
import pathweave.sdk.ManifestError
import pathweave.sdk.PathweaveError
import pathweave.sdk.SignatureError
import pathweave.sdk.assertRefused
import pathweave.sdk.get
import pathweave.sdk.text

class BundleTest {
    @TempDir
    lateinit var folder: Path

    @Test
    fun `the bundle opens for its signer's key`() {
        val bundle = Contract.reference()
        assertTrue(bundle.signed)
        assertEquals(Contract.vectors["bundle"]["digest"].text, bundle.digest)
        bundle.verify()
    }

    @Test
    fun `an unsigned or altered manifest is refused before it is parsed`() {
        val copy = Contract.copy(folder)
        val manifest = File(copy, "manifest.json")
        manifest.writeText("no JSON at all")
        assertRefused<SignatureError> { Bundle.open(copy, Contract.key) }
        assertRefused<ManifestError> { Bundle.open(copy) }
        File(copy, "manifest.sig").delete()
        assertRefused<SignatureError> { Bundle.open(copy, Contract.key) }
    }

    @Test
    fun `a signature of another length is refused even without a key`() {
        val copy = Contract.copy(folder)
        File(copy, "manifest.sig").writeBytes(ByteArray(63))
        assertRefused<SignatureError> { Bundle.open(copy) }
    }

    @Test
    fun `without a key an unsigned bundle opens`() {
        val copy = Contract.copy(folder)
        File(copy, "manifest.sig").delete()
        assertEquals(false, Bundle.open(copy).signed)
    }

    @Test
    fun `a missing or truncated blob is refused when the bundle opens`() {
        val copy = Contract.copy(folder)
        val blob = File(copy, "blobs/" + Contract.reference().manifest.blocks[0].renditions[0].blob)
        blob.writeBytes(blob.readBytes().dropLast(1).toByteArray())
        assertRefused<BlobError> { Bundle.open(copy) }
        blob.delete()
        assertRefused<BlobError> { Bundle.open(copy) }
    }

    @Test
    fun `an altered blob is refused when it is read`() {
        val copy = Contract.copy(folder)
        val name = Contract.reference().manifest.blocks[0].renditions[0].blob
        val blob = File(copy, "blobs/$name")
        blob.writeBytes(blob.readBytes().also { it[it.size - 1] = (it.last() + 1).toByte() })
        val bundle = Bundle.open(copy)
        assertRefused<BlobError> { bundle.readBlob(name) }
        assertRefused<BlobError> { bundle.verify() }
        assertRefused<BlobError> { AdaptiveModel.open(copy).close() }
    }

    @Test
    fun `a flipped byte and a truncation anywhere in any file is refused`() {
        val copy = Contract.copy(folder)
        for (file in copy.walk().filter { it.isFile }.toList()) {
            val whole = file.readBytes()
            val places = whole.indices step if (whole.size > 1_000) 17 else 1 // the manifest is long
            val flips = places.asSequence().map { at -> whole.copyOf().also { it[at] = (it[at] + 1).toByte() } }
            for (damaged in flips + places.asSequence().map(whole::copyOf)) {
                file.writeBytes(damaged)
                assertRefused(file) {
                    if (file.parentFile == copy) Bundle.open(copy, Contract.key)
                    else BlobBytes.read(file.parentFile, file.name, null)
                }
            }
            file.writeBytes(whole)
        }
        Bundle.open(copy, Contract.key).verify()
    }

    private fun assertRefused(file: File, work: () -> Unit) {
        val error = assertRefused<PathweaveError>(work)
        assertTrue(error is BundleError, "${file.name}: $error")
    }

    @Test
    fun `what is no bundle says so`() {
        assertRefused<BundleError> { Bundle.open(folder.toFile()) }
        assertRefused<BundleError> { Bundle.open(File(folder.toFile(), "none")) }
    }
}
