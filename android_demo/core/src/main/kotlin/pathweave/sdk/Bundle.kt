/**
 * Reading a bundle: verified manifest, verified blobs, composed stretches.
 *
 * A bundle is a folder: `manifest.json`, `manifest.sig`, `blobs/<sha256>`. Nothing in it is used before it is
 * verified: the signature over the exact bytes before they are parsed, the digest of a blob before its bytes leave
 * this file.
 */
package pathweave.sdk

import java.io.File
import java.io.IOException
import java.security.MessageDigest
import pathweave.sdk.runtimes.OnnxRuntime

internal const val MANIFEST = "manifest.json"
internal const val SIGNATURE = "manifest.sig"
internal const val BLOBS = "blobs"
internal const val MANIFEST_MAX_BYTES = 64_000_000L
internal const val FETCH_AGAIN = "fetch or package the bundle again"

/** A verified bundle in a local folder. Make one with [Bundle.open]. */
public class Bundle private constructor(
    public val folder: File,
    private val blobs: File,
    public val manifest: Manifest,
    /** sha256 of manifest.json: names this very bundle. */
    public val digest: String,
    public val signed: Boolean,
) {
    /** Its graph. */
    public val supernet: Supernet = manifest.supernet()

    private val sizes = manifest.blobs()

    /**
     * The bytes of a blob, their digest verified; mapped from the file where they are many.
     *
     * @throws BlobError missing, unreadable, truncated, altered, or larger than a blob may be. The size is checked
     *   first.
     */
    public fun readBlob(name: String): BlobBytes = BlobBytes.read(blobs, name, sizes[name])

    /** Reads every blob once and checks its digest ([BlobError]). */
    public fun verify() {
        for ((name, size) in sizes) BlobBytes.verify(blobs, name, size)
    }

    /**
     * The blocks of [edges], which follow each other, as one model to run at their input size.
     *
     * With [exit], the branch at their end answers as well: its output comes after those of the cut point. Without
     * edges it is the branch alone, for all input sizes of the bundle. [anySize]: the blocks too are one model for all
     * input sizes.
     *
     * @throws BlobError a blob does not verify.
     */
    public fun stretch(edges: List<Edge>, exit: ExitChoice? = null, anySize: Boolean = false): Stretch {
        val renditions = edges.map(supernet::rendition) + listOfNotNull(exit?.let(supernet::exitRendition))
        val branch = exit?.let { supernet.exit(it.exit) }
        val start = edges.firstOrNull()?.let { supernet.ends(it).first }
            ?: branch?.let { supernet.cutPoints[it.position] } ?: throw UsageError("a stretch needs a block or an exit")
        val atEnd = edges.lastOrNull()?.let { supernet.ends(it).second.tensors }.orEmpty()
        val owners = LinkedHashMap<String, String>() // of each blob, the block or exit that reads it first
        val parts = edges.map { "block ${it.block}@${it.rendition}" } +
            listOfNotNull(exit?.let { "exit ${it.exit}@${it.rendition}" })
        for ((part, one) in parts.zip(renditions)) for (name in one.shared + one.blob) owners.putIfAbsent(name, part)
        return Stretch(
            fragments = owners.keys.map(::readBlob),
            inputs = start.tensors,
            outputs = atEnd + listOfNotNull(branch?.let(supernet::exitTensor)),
            irVersion = manifest.onnx.irVersion,
            opset = manifest.onnx.opset,
            freeAxes = if (anySize || edges.isEmpty()) supernet.freeAxes else emptyMap(),
            owners = owners.values.toList(),
        )
    }

    private fun checkBlobsPresent() {
        for ((name, size) in sizes) {
            val file = File(blobs, name)
            if (!file.isFile) throw BlobError("blob ${name.take(12)}… is missing from $blobs", FETCH_AGAIN)
            checkSize(name, file.length(), size)
        }
    }

    public companion object {
        /**
         * Open the bundle in [folder]; with [trust], only if its owner signed it.
         *
         * [blobs]: where the blobs lie, if not in the folder itself.
         *
         * Renditions that ONNX Runtime does not run on a processor are left out, with their edges and blobs.
         *
         * 1. read the manifest's bytes; 2. check the signature over them; 3. parse and check the schema and the graph;
         * 4. check that every blob is there with the stated size (digests are checked whenever a blob is read).
         *
         * @throws BundleError one of its kinds (ManifestError, UnsupportedFormatError, SignatureError, BlobError).
         */
        public fun open(folder: File, trust: TrustedKey? = null, blobs: File = File(folder, BLOBS)): Bundle {
            val data = readManifest(folder)
            val signature = readSignature(folder)
            if (trust != null) {
                trust.verify(
                    data,
                    signature ?: throw SignatureError("$folder is not signed, but a trusted key was given"),
                )
            }
            val manifest = decodeManifest(data).runnablePart(OnnxRuntime::runs)
            val bundle = Bundle(folder, blobs, manifest, sha256(data), signature != null)
            bundle.checkBlobsPresent()
            return bundle
        }
    }
}

/** The bytes of a bundle's manifest; their number is bounded before they are read. */
internal fun readManifest(folder: File): ByteArray {
    val file = File(folder, MANIFEST)
    if (file.length() > MANIFEST_MAX_BYTES) throw ManifestError("$file has more than $MANIFEST_MAX_BYTES bytes")
    try {
        return file.readBytes()
    } catch (error: IOException) {
        throw BundleError(
            "$folder is not a bundle: cannot read $MANIFEST: ${error.message}",
            "a bundle is the folder that pathweave package wrote",
            error,
        )
    }
}

private fun readSignature(folder: File): ByteArray? {
    val file = File(folder, SIGNATURE)
    if (!file.exists()) return null
    if (file.length() != SIGNATURE_BYTES.toLong()) {
        throw SignatureError("$SIGNATURE has ${file.length()} bytes instead of $SIGNATURE_BYTES")
    }
    try {
        return file.readBytes()
    } catch (error: IOException) {
        throw SignatureError("cannot read $SIGNATURE: ${error.message}", null, error)
    }
}

/** The sha256 of [data] in lower-case hexadecimal digits. */
internal fun sha256(data: ByteArray): String = hex(MessageDigest.getInstance("SHA-256").digest(data))

internal fun hex(digest: ByteArray): String =
    digest.joinToString("") { (it.toInt() and 0xff).toString(16).padStart(2, '0') }
