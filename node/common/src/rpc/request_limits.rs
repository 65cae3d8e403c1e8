//! Limits of requests, checked before they are decoded. Pure.
//!
//! ```text
//!   encoded request ── its length ──▶ keys of its fields: elements of repeated fields, counted ──▶ decoder
//! ```
//!
//! An empty message takes two bytes of a request and hundreds of bytes of memory once it is decoded. So the length of a
//! frame does not bound the memory of its request; the number of elements does.
//!
//! Not here: the limits of each method, which stand beside the service's handlers.

use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Limits of a method's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// Maximum length of the encoded request in bytes, without its sidecars.
    pub bytes_max: usize,
    pub repeated: &'static [RepeatedLimit],
}

/// Limit of a repeated field of messages, texts or bytes, or of a map.
///
/// Numbers need none: decoded, they take a few times the bytes of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepeatedLimit {
    /// Numbers of the fields from the request down to this one.
    pub path: &'static [u32],
    /// Names of the fields of the path, for errors.
    pub name: &'static str,
    /// Maximum number of elements in a request, in all messages that have the field together.
    pub elements_max: usize,
}

/// Returns the limit of a field.
pub const fn field(path: &'static [u32], name: &'static str, elements_max: usize) -> RepeatedLimit {
    RepeatedLimit { path, name, elements_max }
}

/// Length in bytes of the longest request that names a few things.
const SMALL_BYTES_MAX: usize = 1 << 20;
/// Bytes of the shortest element: its key and its length.
const ELEMENT_BYTES_MIN: usize = 2;

impl RequestLimits {
    /// No limit other than that of the frame.
    pub const FRAME: RequestLimits = RequestLimits::repeated(&[]);
    /// Limit of a request that names a few things.
    pub const SMALL: RequestLimits = RequestLimits { bytes_max: SMALL_BYTES_MAX, repeated: &[] };

    /// Returns the limits of a request that may be as long as a frame.
    pub const fn repeated(repeated: &'static [RepeatedLimit]) -> RequestLimits {
        RequestLimits { bytes_max: usize::MAX, repeated }
    }

    /// Checks the length of an encoded request.
    pub(super) fn check_bytes(&self, bytes: usize) -> Result<(), String> {
        if bytes <= self.bytes_max {
            return Ok(());
        }
        Err(format!("the request is too long ({bytes} bytes, limit {}); send less at a time", self.bytes_max))
    }

    /// Checks the repeated fields of an encoded request.
    pub(super) fn check_elements(&self, request: &[u8]) -> Result<(), String> {
        // Nearly every request is too short for more elements than a limit, and is not walked.
        let lowest = self.repeated.iter().map(|field| field.elements_max).min();
        if lowest.is_none_or(|lowest| request.len() / ELEMENT_BYTES_MIN <= lowest) {
            return Ok(());
        }
        let (counts, path) = (vec![0; self.repeated.len()], Vec::new());
        ElementCounter { fields: self.repeated, counts, path }.count_within(request)
    }
}

/// Walk over the keys of an encoded request.
struct ElementCounter<'a> {
    fields: &'a [RepeatedLimit],
    /// Elements of each field so far.
    counts: Vec<usize>,
    /// Numbers of the fields around the walked bytes.
    path: Vec<u32>,
}

impl ElementCounter<'_> {
    /// Counts the fields of a message at the path. The depth is that of the longest limited path.
    fn count_within(&mut self, mut message: &[u8]) -> Result<(), String> {
        let malformed = |error: DecodeError| format!("the request cannot be decoded: {error}");
        while !message.is_empty() {
            let (number, wire_type) = decode_key(&mut message).map_err(malformed)?;
            let from = message;
            skip_field(wire_type, number, &mut message, DecodeContext::default()).map_err(malformed)?;
            self.path.push(number);
            self.count_field()?;
            if wire_type == WireType::LengthDelimited && self.is_around_limited_field() {
                let mut inner = &from[..from.len() - message.len()];
                decode_varint(&mut inner).map_err(malformed)?;
                self.count_within(inner)?;
            }
            self.path.pop();
        }
        Ok(())
    }

    /// Counts an element of the field at the path.
    fn count_field(&mut self) -> Result<(), String> {
        for (field, count) in self.fields.iter().zip(&mut self.counts) {
            if field.path != self.path.as_slice() {
                continue;
            }
            *count += 1;
            if *count > field.elements_max {
                let RepeatedLimit { name, elements_max, .. } = field;
                return Err(format!(
                    "too many elements in {name} (limit {elements_max}); send fewer at a time"
                ));
            }
        }
        Ok(())
    }

    fn is_around_limited_field(&self) -> bool {
        let depth = self.path.len();
        self.fields.iter().any(|field| field.path.len() > depth && field.path.starts_with(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limits of `message Request { repeated A as = 1; } message A { repeated bytes bs = 3; }`.
    const LIMITS: RequestLimits = RequestLimits {
        bytes_max: usize::MAX,
        repeated: &[field(&[1], "as", 3), field(&[1, 3], "as.bs", 4)],
    };

    /// An `A` with these many empty `bs`, as an element of a request.
    fn element(bs: u8) -> Vec<u8> {
        [&[0x0a, 2 * bs][..], &[0x1a, 0].repeat(bs.into())].concat()
    }

    fn check(elements: &[u8]) -> Result<(), String> {
        let request: Vec<u8> = elements.iter().flat_map(|bs| element(*bs)).collect();
        LIMITS.check_elements(&request)
    }

    #[test]
    fn elements_are_counted_over_all_messages_of_a_request() {
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[0, 0, 0]), Ok(()));
        assert_eq!(check(&[2, 0, 2]), Ok(()));
        let error = check(&[0, 0, 0, 0]).expect_err("four of three");
        assert_eq!(error, "too many elements in as (limit 3); send fewer at a time");
        let error = check(&[2, 1, 2]).expect_err("five of four");
        assert_eq!(error, "too many elements in as.bs (limit 4); send fewer at a time");
    }

    #[test]
    fn other_fields_and_their_contents_are_not_counted() {
        // 2: bytes that would parse as elements of `as`; 1 { 4: bytes that would parse as elements of `bs` }
        let other =
            [&[0x12u8, 10][..], &[0x0a, 0].repeat(5), &[0x0a, 12, 0x22, 10], &[0x1a, 0].repeat(5)].concat();
        assert_eq!(LIMITS.check_elements(&other), Ok(()));
    }

    #[test]
    fn a_malformed_request_is_an_error_once_it_is_long_enough_to_be_walked() {
        assert_eq!(LIMITS.check_elements(&[0x0a, 9]), Ok(()), "the decoder reports it");
        for torn in [&[0x0a, 0, 0x0a, 0, 0x0a, 0, 0x0a, 9][..], &[0x0a, 6, 0x1a, 9, 0, 0, 0, 0]] {
            let error = LIMITS.check_elements(torn).expect_err("a torn field");
            assert!(error.starts_with("the request cannot be decoded: "), "{error}");
        }
    }

    #[test]
    fn a_small_request_has_a_longest_length() {
        assert_eq!(RequestLimits::SMALL.check_bytes(1 << 20), Ok(()));
        let error = RequestLimits::SMALL.check_bytes((1 << 20) + 1).expect_err("one byte too long");
        assert_eq!(error, "the request is too long (1048577 bytes, limit 1048576); send less at a time");
        assert_eq!(RequestLimits::FRAME.check_bytes(usize::MAX), Ok(()));
    }
}
