//! Compression of whole pages. A page keeps its bytes as they are unless compressing saves an eighth.

use std::io::{Read, Write};

use crate::error::{Error, Result};
use crate::schema::Compression;

/// Most bytes of a page before compression. A header with a larger length is corrupt.
pub const PAGE_BYTES_MAX: usize = 64 << 20;

/// Returns the codec number stored in a page's header. The numbers are Kudu's, so that operators need to know one list.
fn number(compression: Compression) -> u8 {
    compression as u8
}

/// Compresses `body`: returns the codec number and the bytes to store, or `None` to store the body as it is.
pub fn compress(compression: Compression, body: &[u8]) -> Option<(u8, Vec<u8>)> {
    let packed = match compression {
        Compression::Default | Compression::None => return None,
        Compression::Snappy => snap::raw::Encoder::new().compress_vec(body).ok()?,
        Compression::Lz4 => lz4_flex::block::compress(body),
        Compression::Zlib => zlib(body)?,
        Compression::Zstd => zstd::bulk::compress(body, 1).ok()?,
    };
    (packed.len() < body.len() - body.len() / 8).then(|| (number(compression), packed))
}

fn zlib(body: &[u8]) -> Option<Vec<u8>> {
    let level = flate2::Compression::new(6);
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::with_capacity(body.len() / 2), level);
    encoder.write_all(body).ok()?;
    encoder.finish().ok()
}

/// Decompresses to exactly `size` bytes. Returns `Corrupt` if there are more or fewer, or the stream is damaged.
pub fn decompress(number: u8, stored: &[u8], size: usize) -> Result<Vec<u8>> {
    match number {
        2 => snappy_exact(stored, size),
        3 => lz4_exact(stored, size),
        4 => zlib_exact(stored, size),
        100 => zstd_exact(stored, size),
        other => Err(Error::unsupported(format!("compression {other} is not known to this build"))),
    }
}

/// Rejects a size that no stream of `stored` bytes can grow to, before memory is allocated for it.
fn check_ratio(stored: usize, size: usize, ratio: usize) -> Result<()> {
    if size > PAGE_BYTES_MAX || size > stored.saturating_mul(ratio) + 64 {
        return Err(Error::corrupt(format!("{stored} compressed bytes cannot hold {size}")));
    }
    Ok(())
}

/// Decompresses one LZ4 block to exactly `size` bytes.
pub fn lz4_exact(stored: &[u8], size: usize) -> Result<Vec<u8>> {
    check_ratio(stored.len(), size, 255)?;
    let mut body = vec![0; size];
    match lz4_flex::block::decompress_into(stored, &mut body) {
        Ok(got) if got == size => Ok(body),
        Ok(got) => Err(Error::corrupt(format!("an LZ4 block holds {got} bytes instead of {size}"))),
        Err(error) => Err(Error::corrupt(format!("an LZ4 block is damaged: {error}"))),
    }
}

fn snappy_exact(stored: &[u8], size: usize) -> Result<Vec<u8>> {
    check_ratio(stored.len(), size, 64)?;
    let mut body = vec![0; size];
    match snap::raw::Decoder::new().decompress(stored, &mut body) {
        Ok(got) if got == size => Ok(body),
        Ok(got) => Err(Error::corrupt(format!("a Snappy block holds {got} bytes instead of {size}"))),
        Err(error) => Err(Error::corrupt(format!("a Snappy block is damaged: {error}"))),
    }
}

fn zlib_exact(stored: &[u8], size: usize) -> Result<Vec<u8>> {
    check_ratio(stored.len(), size, 1040)?;
    let mut body = Vec::with_capacity(size);
    // One byte more than expected is read, so that a longer stream is noticed.
    let mut decoder = flate2::read::ZlibDecoder::new(stored).take(size as u64 + 1);
    match decoder.read_to_end(&mut body) {
        Ok(got) if got == size => Ok(body),
        Ok(_) => Err(Error::corrupt(format!("a zlib stream does not hold {size} bytes"))),
        Err(error) => Err(Error::corrupt(format!("a zlib stream is damaged: {error}"))),
    }
}

fn zstd_exact(stored: &[u8], size: usize) -> Result<Vec<u8>> {
    // Zstandard's runs make the ratio practically unbounded; the page limit is the effective one.
    check_ratio(stored.len(), size, 1 << 20)?;
    match zstd::bulk::decompress(stored, size) {
        Ok(body) if body.len() == size => Ok(body),
        Ok(body) => Err(Error::corrupt(format!("a zstd frame holds {} bytes instead of {size}", body.len()))),
        Err(error) => Err(Error::corrupt(format!("a zstd frame is damaged: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_codec_round_trips() {
        let body: Vec<u8> = (0..100_000u32).flat_map(|i| (i / 100).to_le_bytes()).collect();
        for codec in Compression::CODECS {
            let (number, packed) = compress(codec, &body).unwrap();
            assert!(packed.len() < body.len() / 2, "{codec:?}");
            assert_eq!(decompress(number, &packed, body.len()).unwrap(), body);
            assert!(decompress(number, &packed, body.len() - 1).is_err());
            assert!(decompress(number, &packed, body.len() + 1).is_err());
        }
    }

    #[test]
    fn bodies_that_do_not_shrink_are_not_compressed() {
        for codec in Compression::CODECS {
            assert_eq!(compress(codec, b"short"), None);
            assert_eq!(compress(codec, b""), None);
        }
    }

    proptest! {
        #[test]
        fn damaged_streams_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            size in 0usize..100_000,
            number: u8,
        ) {
            for number in [2, 3, 4, 100, number] {
                let _ = decompress(number, &bytes, size);
            }
        }
    }
}
