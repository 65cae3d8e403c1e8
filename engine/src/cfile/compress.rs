//! Compression of whole pages. A page keeps its bytes as they are unless compressing saves an eighth.

use std::io::{Read, Write};

use crate::error::{Error, Result};
use crate::schema::Compression;

/// No page is longer than this before compression; a header that says otherwise is damaged.
pub const PAGE_BYTES_MAX: usize = 64 << 20;

/// The number a page's header gives its compression: Kudu's, so that people need to know one list.
fn number(compression: Compression) -> u8 {
    compression as u8
}

/// What to store for `body`: the compression's number and its bytes, or `None` to store it as it is.
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

/// Decompresses to exactly `size` bytes; `Corrupt` if there are more or fewer or the stream is damaged.
pub fn decompress(number: u8, stored: &[u8], size: usize) -> Result<Vec<u8>> {
    match number {
        2 => snappy_exact(stored, size),
        3 => lz4_exact(stored, size),
        4 => zlib_exact(stored, size),
        100 => zstd_exact(stored, size),
        other => Err(Error::unsupported(format!("compression {other} is not known to this build"))),
    }
}

/// Refuses a size that no stream of `stored` bytes can grow to, before anything is reserved for it.
fn check_ratio(stored: usize, size: usize, ratio: usize) -> Result<()> {
    if size > PAGE_BYTES_MAX || size > stored.saturating_mul(ratio) + 64 {
        return Err(Error::corrupt(format!("{stored} compressed bytes cannot hold {size}")));
    }
    Ok(())
}

/// Decompresses one LZ4 block to exactly `size` bytes.
pub fn lz4_exact(stored: &[u8], size: usize) -> Result<Vec<u8>> {
    check_ratio(stored.len(), size, 255)?;
    let mut out = vec![0; size];
    match lz4_flex::block::decompress_into(stored, &mut out) {
        Ok(got) if got == size => Ok(out),
        Ok(got) => Err(Error::corrupt(format!("an LZ4 block holds {got} bytes instead of {size}"))),
        Err(error) => Err(Error::corrupt(format!("an LZ4 block is damaged: {error}"))),
    }
}

fn snappy_exact(stored: &[u8], size: usize) -> Result<Vec<u8>> {
    check_ratio(stored.len(), size, 64)?;
    let mut out = vec![0; size];
    match snap::raw::Decoder::new().decompress(stored, &mut out) {
        Ok(got) if got == size => Ok(out),
        Ok(got) => Err(Error::corrupt(format!("a Snappy block holds {got} bytes instead of {size}"))),
        Err(error) => Err(Error::corrupt(format!("a Snappy block is damaged: {error}"))),
    }
}

fn zlib_exact(stored: &[u8], size: usize) -> Result<Vec<u8>> {
    check_ratio(stored.len(), size, 1040)?;
    let mut out = Vec::with_capacity(size);
    // One byte more than promised is asked for, so that a longer stream shows.
    let mut decoder = flate2::read::ZlibDecoder::new(stored).take(size as u64 + 1);
    match decoder.read_to_end(&mut out) {
        Ok(got) if got == size => Ok(out),
        Ok(_) => Err(Error::corrupt(format!("a zlib stream does not hold {size} bytes"))),
        Err(error) => Err(Error::corrupt(format!("a zlib stream is damaged: {error}"))),
    }
}

fn zstd_exact(stored: &[u8], size: usize) -> Result<Vec<u8>> {
    // Zstandard's runs make the ratio all but unbounded; the page limit is what holds.
    check_ratio(stored.len(), size, 1 << 20)?;
    match zstd::bulk::decompress(stored, size) {
        Ok(out) if out.len() == size => Ok(out),
        Ok(out) => Err(Error::corrupt(format!("a zstd frame holds {} bytes instead of {size}", out.len()))),
        Err(error) => Err(Error::corrupt(format!("a zstd frame is damaged: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_codec_gives_back_what_it_took() {
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
    fn what_does_not_shrink_is_left_alone() {
        for codec in Compression::CODECS {
            assert_eq!(compress(codec, b"short"), None);
            assert_eq!(compress(codec, b""), None);
        }
    }

    proptest! {
        #[test]
        fn bad_streams_never_panic(
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
