//! Hand-written encodings: varints, length-prefixed bytes, and the checksummed envelope of files that are stored as a
//! whole.
//!
//! ```text
//! varint    7 bits a byte, low bits first, high bit = more follows; at most 10 bytes for 64 bits
//! zig-zag   0, -1, 1, -2, ...  as  0, 1, 2, 3, ...
//! bytes     varint length, then that many bytes
//!
//! envelope  magic [4] | version u16 LE | payload length u64 LE | payload | CRC32C u32 LE of all before it
//! ```
//!
//! A decoder never trusts a length: it is compared with the bytes present before anything is allocated.

use crate::error::{Error, Result};

/// Appends `value` as a varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends `value` as a zig-zag varint: small magnitudes of either sign are short.
pub fn put_zigzag(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Appends the length of `bytes`, then `bytes`.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Returns the number of bytes that [`put_varint`] appends for `value`.
pub fn varint_len(value: u64) -> usize {
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// Reader of values from the front of a slice. Every method fails with `Corrupt` rather than read past the end.
#[derive(Debug, Clone, Copy)]
pub struct ByteReader<'a> {
    rest: &'a [u8],
    start_len: usize,
}

impl<'a> ByteReader<'a> {
    pub fn new(bytes: &'a [u8]) -> ByteReader<'a> {
        ByteReader { rest: bytes, start_len: bytes.len() }
    }

    /// Returns the number of bytes read so far.
    pub fn position(&self) -> usize {
        self.start_len - self.rest.len()
    }

    /// Returns the bytes not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the next `len` bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(len) {
            Some((head, tail)) => {
                self.rest = tail;
                Ok(head)
            }
            None => Err(self.too_short(len as u64)),
        }
    }

    #[cold]
    fn too_short(&self, wanted: u64) -> Error {
        let (left, at) = (self.rest.len(), self.position());
        Error::corrupt(format!("{wanted} bytes are needed at offset {at} but only {left} are left"))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N)?;
        Ok(bytes.try_into().expect("take returns exactly N bytes"))
    }

    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a varint of at most 64 bits.
    #[inline]
    pub fn varint(&mut self) -> Result<u64> {
        if let Some((&first, tail)) = self.rest.split_first()
            && first < 0x80
        {
            self.rest = tail;
            return Ok(first.into());
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64> {
        let at = self.position();
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Error::corrupt(format!("the varint at offset {at} does not fit in 64 bits")))
    }

    /// Reads a varint that must fit in 32 bits.
    pub fn varint_u32(&mut self) -> Result<u32> {
        let at = self.position();
        let value = self.varint()?;
        u32::try_from(value)
            .map_err(|_| Error::corrupt(format!("{value} at offset {at} does not fit in 32 bits")))
    }

    pub fn zigzag(&mut self) -> Result<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Reads a length and that many bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.varint()?;
        match usize::try_from(len) {
            Ok(len) => self.take(len),
            Err(_) => Err(self.too_short(len)),
        }
    }

    /// Reads a length and that many bytes, which must be UTF-8.
    pub fn text(&mut self) -> Result<&'a str> {
        let at = self.position();
        std::str::from_utf8(self.bytes()?)
            .map_err(|_| Error::corrupt(format!("the text at offset {at} is not UTF-8")))
    }

    /// Fails if bytes are left: then writer and reader disagree about the format.
    pub fn finish(self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        let (left, at) = (self.rest.len(), self.position());
        Err(Error::corrupt(format!("{left} bytes are left over at offset {at}")))
    }
}

const SEAL_HEAD: usize = 4 + 2 + 8;
const SEAL_TAIL: usize = 4;

/// Bytes that [`seal`] adds to a payload.
pub const SEAL_OVERHEAD: usize = SEAL_HEAD + SEAL_TAIL;

/// Returns `payload` in an envelope with its kind (magic), format version and checksum.
pub fn seal(magic: [u8; 4], version: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(SEAL_OVERHEAD + payload.len());
    out.extend_from_slice(&magic);
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    out.extend_from_slice(payload);
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// Opens an envelope of this kind whose version is at most `newest`. Returns its version and payload.
///
/// Fails with `Corrupt` if the bytes are damaged or of another kind, and with `Unsupported` if a newer build wrote
/// them. Bytes after the envelope are an error; see [`unseal_prefix`].
pub fn unseal(magic: [u8; 4], newest: u16, bytes: &[u8]) -> Result<(u16, &[u8])> {
    let (version, payload, used) = unseal_prefix(magic, newest, bytes)?;
    if used < bytes.len() {
        let (extra, name) = (bytes.len() - used, Magic(magic));
        return Err(Error::corrupt(format!("{extra} bytes follow the {name} record that should be alone")));
    }
    Ok((version, payload))
}

/// Opens the envelope at the start of `bytes`. Returns its version, its payload, and its total length in bytes.
pub fn unseal_prefix(magic: [u8; 4], newest: u16, bytes: &[u8]) -> Result<(u16, &[u8], usize)> {
    let name = Magic(magic);
    let mut reader = ByteReader::new(bytes);
    let read =
        |result: Result<_>| result.map_err(|error: Error| error.context(format_args!("{name} record")));
    let found: [u8; 4] = read(reader.array())?;
    if found != magic {
        let found = Magic(found);
        return Err(Error::corrupt(format!("expected a {name} record, but the bytes begin with {found}")));
    }
    let version = reader.u16()?;
    let len = reader.u64()?;
    let payload = match usize::try_from(len) {
        Ok(len) => reader.take(len),
        Err(_) => Err(reader.too_short(len)),
    };
    let payload = payload.map_err(|error| error.context(format_args!("{name} record")))?;
    let body = &bytes[..reader.position()];
    let stored = reader.u32().map_err(|error| error.context(format_args!("{name} record")))?;
    let computed = crc32c::crc32c(body);
    if stored != computed {
        return Err(Error::corrupt(format!(
            "{name} record: its checksum is {stored:#010x} but its bytes give {computed:#010x}"
        )));
    }
    if version > newest {
        return Err(Error::unsupported(format!(
            "{name} record has format {version}, newer than the newest this build reads ({newest}); \
             use the build that wrote it or a later one"
        )));
    }
    Ok((version, payload, reader.position()))
}

struct Magic([u8; 4]);

impl std::fmt::Display for Magic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use proptest::prelude::*;

    #[test]
    fn varints_have_the_documented_bytes() {
        for (value, bytes) in
            [(0, &[0u8][..]), (127, &[127]), (128, &[0x80, 1]), (300, &[0xac, 2]), (1 << 63, &[0x80; 9])]
        {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(&out[..bytes.len()], bytes);
            assert_eq!(out.len(), varint_len(value));
        }
    }

    #[test]
    fn a_varint_that_is_too_long_is_rejected() {
        let mut eleven = vec![0x80; 10];
        eleven.push(0);
        assert_eq!(ByteReader::new(&eleven).varint().unwrap_err().kind, ErrorKind::Corrupt);
        let mut too_big = vec![0xff; 9];
        too_big.push(2);
        assert_eq!(ByteReader::new(&too_big).varint().unwrap_err().kind, ErrorKind::Corrupt);
    }

    #[test]
    fn a_length_beyond_the_end_is_rejected() {
        let mut out = Vec::new();
        put_varint(&mut out, u64::MAX);
        let error = ByteReader::new(&out).bytes().unwrap_err();
        expect_test::expect!["18446744073709551615 bytes are needed at offset 10 but only 0 are left"]
            .assert_eq(&error.message);
    }

    #[test]
    fn every_damaged_byte_of_an_envelope_is_detected() {
        let sealed = seal(*b"TEST", 3, b"payload");
        assert_eq!(unseal(*b"TEST", 3, &sealed).unwrap(), (3, &b"payload"[..]));
        for at in 0..sealed.len() {
            let mut bad = sealed.clone();
            bad[at] ^= 0x10;
            assert_eq!(unseal(*b"TEST", 3, &bad).unwrap_err().kind, ErrorKind::Corrupt, "byte {at}");
            assert_eq!(unseal(*b"TEST", 3, &sealed[..at]).unwrap_err().kind, ErrorKind::Corrupt, "cut {at}");
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        let error = unseal(*b"TEST", 2, &seal(*b"TEST", 3, b"")).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported);
        let (message, advice) = error.message.split_once("; ").unwrap();
        assert_eq!(message, "\"TEST\" record has format 3, newer than the newest this build reads (2)");
        assert_eq!(advice, "use the build that wrote it or a later one");
    }

    proptest! {
        #[test]
        fn written_values_are_read_back(values: Vec<u64>, signed: Vec<i64>, text: String, bytes: Vec<u8>) {
            let mut out = Vec::new();
            values.iter().for_each(|value| put_varint(&mut out, *value));
            signed.iter().for_each(|value| put_zigzag(&mut out, *value));
            put_bytes(&mut out, text.as_bytes());
            put_bytes(&mut out, &bytes);
            let mut reader = ByteReader::new(&out);
            for value in &values {
                prop_assert_eq!(reader.varint().unwrap(), *value);
            }
            for value in &signed {
                prop_assert_eq!(reader.zigzag().unwrap(), *value);
            }
            prop_assert_eq!(reader.text().unwrap(), text);
            prop_assert_eq!(reader.bytes().unwrap(), bytes);
            reader.finish().unwrap();
        }

        #[test]
        fn no_input_panics(bytes: Vec<u8>) {
            let mut reader = ByteReader::new(&bytes);
            while reader.bytes().is_ok() && !reader.is_empty() {}
            let _ = unseal(*b"TEST", 1, &bytes);
        }
    }
}
