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
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.channels.FileChannel.MapMode.READ_ONLY
import java.nio.file.StandardOpenOption.READ
import java.security.MessageDigest
import pathweave.sdk.BlobError
import pathweave.sdk.BundleError
import pathweave.sdk.CompositionError
import pathweave.sdk.ManifestError
import pathweave.sdk.SignatureError
import pathweave.sdk.UsageError
import pathweave.sdk.files.digestOf
import pathweave.sdk.files.hex
import pathweave.sdk.files.reason
import pathweave.sdk.files.sha256
import pathweave.sdk.supernet.CPU
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.PROVIDERS
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
     * Blocks at several homes become one stretch with a part for each run of equal home; the branch belongs to the last.
     *
     * @throws BlobError a blob does not verify.
     * @throws CompositionError blocks of one home are for different providers.
     */
    public fun stretch(edges: List<Edge>, exit: ExitChoice? = null, anySize: Boolean = false): Stretch {
        val runs = runsOfEqualHome(edges)
        if (runs.size < 2) return ofOneHome(edges, exit, anySize)
        val parts = runs.dropLast(1).map { ofOneHome(it, null, anySize) } + ofOneHome(runs.last(), exit, anySize)
        val (first, last) = parts.first() to parts.last()
        return Stretch(emptyList(), first.inputs, last.outputs, last.irVersion, last.opset, last.freeAxes, parts = parts)
    }

    private fun ofOneHome(edges: List<Edge>, exit: ExitChoice?, anySize: Boolean): Stretch {
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
            opset = maxOf(manifest.onnx.opset, renditions.maxOf { it.opset ?: 0L }),
            freeAxes = if (anySize || edges.isEmpty()) supernet.freeAxes else emptyMap(),
            owners = owners.values.toList(),
            home = edges.firstOrNull()?.home.orEmpty(),
            providers = commonProviders(renditions),
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

    /** The same bundle without the renditions that ONNX Runtime runs on none of [providers]. */
    internal fun runnableOn(providers: Collection<String>): Bundle {
        fun part(of: Manifest) = of.runnablePart { it.runsOn(providers) }
        return Bundle(folder, blobs, part(manifest), digest, signed, part(offered))
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
         * Open the bundle in [folder]; with [trust], only if it is signed by a key that it stands for.
         *
         * A [TrustedKey] verifies manifest.sig. [TrustedKeys] verify release.json, whether it has expired or not; where
         * there is none, manifest.sig. [blobs]: where the blobs lie, if not in the folder itself. [exits]: leaves out
         * the others; their blobs need not be here.
         *
         * Renditions that ONNX Runtime does not run on one of [providers] are left out, with their edges and blobs.
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
            providers: Collection<String> = listOf(PROVIDERS.getValue(CPU)),
        ): Bundle {
            val data = readManifest(folder)
            val signature = readSignature(folder)
            val release = trust?.verify(SignedParts("$folder", data, signature, readRelease(folder)))
            val read = decodeManifest(data)
            release?.requireSameName(read.name, read.version)
            val offered = read.runnablePart { it.runsOn(providers) }
            val held = if (exits == null) offered else offered.partWithExits(exits)
            val bundle = Bundle(folder, blobs, held, sha256(data), signature != null, offered)
            bundle.checkBlobsPresent()
            return bundle
        }
    }
}

/** The providers that all [renditions] are for; empty for any. */
private fun commonProviders(renditions: List<Rendition>): List<String> {
    val sets = renditions.map { it.providers }.filter { it.isNotEmpty() }
    val common = sets.reduceOrNull { both, next -> both.filter { it in next } } ?: return emptyList()
    return common.ifEmpty { throw CompositionError("no provider runs all blocks that run as one model here") }
}

/** [edges] cut wherever the home changes. */
internal fun runsOfEqualHome(edges: List<Edge>): List<List<Edge>> = buildList<MutableList<Edge>> {
    for (edge in edges) {
        if (lastOrNull()?.last()?.home == edge.home) last() += edge else add(mutableListOf(edge))
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

internal const val BLOB_MAX_BYTES = Int.MAX_VALUE.toLong() // protobuf's limit; the manifest does not size shared blobs
private const val MAPPED_FROM_BYTES = 1L shl 20

/** Read-only bytes of a blob or a fragment. */
public class BlobBytes private constructor(private val bytes: ByteBuffer) {
    /** How many. */
    public val size: Int get() = bytes.capacity()

    internal fun view(): ByteBuffer = bytes.duplicate()

    internal fun toByteArray(): ByteArray = ByteArray(size).also { view().get(it) }

    internal operator fun get(index: Int): Byte = bytes.get(index)

    public companion object {
        /** [bytes], which must not change from then on. */
        public fun of(bytes: ByteArray): BlobBytes = BlobBytes(ByteBuffer.wrap(bytes))

        /**
         * The bytes of blob [name], which lies in [folder], their digest verified.
         *
         * @throws BlobError missing, unreadable, altered, not of the [stated] size, or larger than a blob may be. The
         *   size is checked before a byte is read.
         */
        internal fun read(folder: File, name: String, stated: Long?): BlobBytes {
            val bytes = opened(folder, name, stated) { channel, size ->
                if (size >= MAPPED_FROM_BYTES) channel.map(READ_ONLY, 0, size) else read(channel, size.toInt())
            }
            val digest = MessageDigest.getInstance("SHA-256").apply { update(bytes.duplicate()) }
            checkDigest(name, hex(digest.digest()))
            return BlobBytes(bytes)
        }

        /** Throws [BlobError] as [read]; the bytes are read in chunks and not kept. */
        internal fun verify(folder: File, name: String, stated: Long?) {
            opened(folder, name, stated) { _, _ -> }
            val digest = try {
                digestOf(File(folder, name))
            } catch (error: IOException) {
                throw unreadable(name, error)
            }
            checkDigest(name, digest)
        }

        private inline fun <T> opened(
            folder: File,
            name: String,
            stated: Long?,
            use: (FileChannel, Long) -> T,
        ): T = try {
            FileChannel.open(File(folder, name).toPath(), READ).use { channel ->
                checkSize(name, channel.size(), stated)
                use(channel, channel.size())
            }
        } catch (error: IOException) {
            throw unreadable(name, error)
        }

        private fun read(channel: FileChannel, size: Int): ByteBuffer {
            val buffer = ByteBuffer.allocate(size)
            while (buffer.hasRemaining()) if (channel.read(buffer) < 0) break
            return ByteBuffer.wrap(buffer.array(), 0, buffer.position()).slice()
        }
    }
}

/** Throws [BlobError] unless blob [name] has the [stated] size, and one that a blob may have. */
internal fun checkSize(name: String, actual: Long, stated: Long?) {
    if (stated != null && actual != stated) {
        throw BlobError("blob ${name.take(12)}… has $actual bytes instead of $stated", FETCH_AGAIN)
    }
    if (actual > BLOB_MAX_BYTES) {
        throw BlobError("blob ${name.take(12)}… has $actual bytes; $BLOB_MAX_BYTES are allowed", FETCH_AGAIN)
    }
}

private fun checkDigest(name: String, digest: String) {
    if (digest != name) throw BlobError("blob ${name.take(12)}… does not match its digest", FETCH_AGAIN)
}

private fun unreadable(name: String, error: IOException) =
    BlobError("blob ${name.take(12)}… cannot be read: ${reason(error)}", FETCH_AGAIN, error)
