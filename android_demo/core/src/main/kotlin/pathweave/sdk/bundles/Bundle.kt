/**
 * Reading a bundle: verified manifest, verified blobs, composed stretches.
 *
 * A bundle is a folder: `manifest.json`, `manifest.sig`, `blobs/<sha256>`. Nothing in it is used before it is
 * verified: the signature over the exact bytes before they are parsed, the digest of a blob before its bytes leave
 * this file.
 */
package pathweave.sdk.bundles

import java.io.File
import java.io.IOException
import java.io.InputStream
import java.security.MessageDigest
import pathweave.sdk.BlobError
import pathweave.sdk.BundleError
import pathweave.sdk.ManifestError
import pathweave.sdk.SignatureError
import pathweave.sdk.UsageError
import pathweave.sdk.files.sha256
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Rendition
import pathweave.sdk.supernet.Supernet

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
    /** The same with all exits; [manifest] has those that are held here. */
    public val offered: Manifest = manifest,
) {
    /** Its graph. */
    public val supernet: Supernet = manifest.supernet()

    private val sizes = manifest.blobs()
    private val loaded = manifest.loadedBytes()

    /**
     * The bytes of a blob, their digest verified; mapped from the file where they are many.
     *
     * @throws BlobError missing, unreadable, truncated, altered, or larger than a blob may be. The size is checked
     *   first.
     */
    public fun readBlob(name: String): BlobBytes = BlobBytes.read(blobs, name, sizes[name])

    /** Reads every blob once and checks its digest ([BlobError]); with [exits] only those of these exits. */
    public fun verify(exits: Collection<String>? = null) {
        val names = if (exits == null) {
            sizes.keys
        } else {
            manifest.exits.filter { it.id in exits }.flatMap { it.renditions }.flatMap { it.shared + it.blob }.toSet()
        }
        for (name in names) BlobBytes.verify(blobs, name, sizes[name])
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

    /** The blobs of the blocks of [edges] and of the branch of [exit]. */
    internal fun blobNames(edges: List<Edge>, exit: ExitChoice?): Set<String> {
        val renditions = edges.map(supernet::rendition) + listOfNotNull(exit?.let(supernet::exitRendition))
        return renditions.flatMap { it.shared + it.blob }.toSet()
    }

    /** Bytes that a blob takes once loaded: more than it has where weights are stored in few bits. */
    internal fun loadedSize(name: String): Long = maxOf(sizes[name] ?: File(blobs, name).length(), loaded[name] ?: 0L)

    /** The exits that are held here. */
    public val exits: List<String> get() = manifest.exits.map { it.id }

    /**
     * The same bundle with these of the exits that are [offered].
     *
     * @throws UsageError there is no such exit. [BlobError] a blob of one is not here.
     */
    public fun withExits(exits: Collection<String>): Bundle =
        Bundle(folder, blobs, offered.partWithExits(exits), digest, signed, offered).also { it.checkBlobsPresent() }

    private fun checkBlobsPresent() {
        for ((name, size) in sizes) {
            val file = File(blobs, name)
            if (!file.isFile) throw BlobError("blob ${name.take(12)}… is missing from $blobs", FETCH_AGAIN)
            checkSize(name, file.length(), size)
        }
    }

    public companion object {
        /**
         * Open the bundle in [folder]; with [trust], only if it is signed by a key that it stands for.
         *
         * A [TrustedKey] verifies manifest.sig. [TrustedKeys] verify release.json, whether it has expired or not; where
         * there is none, manifest.sig. [blobs]: where the blobs lie, if not in the folder itself. [exits]: leaves out
         * the others; their blobs need not be here.
         *
         * Renditions that ONNX Runtime does not run on a processor are left out, with their edges and blobs.
         *
         * 1. read the manifest's bytes; 2. check the signature over them; 3. parse and check the schema and the graph;
         * 4. check that every blob is there with the stated size (digests are checked whenever a blob is read).
         *
         * @throws BundleError one of its kinds (ManifestError, UnsupportedFormatError, SignatureError, BlobError).
         * @throws UsageError there is no such exit.
         */
        public fun open(
            folder: File,
            trust: Trust? = null,
            blobs: File = File(folder, BLOBS),
            exits: Collection<String>? = null,
        ): Bundle {
            val data = readManifest(folder)
            val signature = readSignature(folder)
            val release = trust?.verify(SignedParts("$folder", data, signature, readRelease(folder)))
            val read = decodeManifest(data)
            release?.requireSameName(read.name, read.version)
            val offered = read.runnablePart(Rendition::runsHere)
            val held = if (exits == null) offered else offered.partWithExits(exits)
            val bundle = Bundle(folder, blobs, held, sha256(data), signature != null, offered)
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

/** At most one byte more than a release may have. */
private fun readRelease(folder: File): ByteArray? {
    val file = File(folder, RELEASE)
    if (!file.exists()) return null
    try {
        return file.inputStream().use { readAtMost(it, RELEASE_MAX_BYTES + 1) }
    } catch (error: IOException) {
        throw SignatureError("cannot read $RELEASE: ${error.message}", null, error)
    }
}

/** The first [maxBytes] bytes of [input], or all if there are fewer. */
internal fun readAtMost(input: InputStream, maxBytes: Int): ByteArray {
    val data = ByteArray(maxBytes)
    var count = 0
    while (count < maxBytes) {
        val read = input.read(data, count, maxBytes - count)
        if (read < 0) break
        count += read
    }
    return data.copyOf(count)
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
