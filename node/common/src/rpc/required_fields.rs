//! Check for proto2 required fields at the top level of an encoded message, without decoding it.
//!
//! The decoder fills missing required fields with defaults. A request that lacks one must be rejected as invalid,
//! not executed with a zero in its position.

use prost::encoding::{DecodeContext, decode_key, skip_field};

/// Checks that `message` contains every field number in `required` (at most 64) and that its fields are complete.
pub(super) fn check_required(mut message: &[u8], required: &[u32]) -> Result<(), String> {
    if required.is_empty() {
        return Ok(());
    }
    let mut missing = u64::MAX >> (64 - required.len().min(64));
    while !message.is_empty() && missing != 0 {
        let malformed = |error| format!("the request cannot be decoded: {error}");
        let (number, wire_type) = decode_key(&mut message).map_err(malformed)?;
        if let Some(position) = required.iter().position(|&field| field == number) {
            missing &= !(1 << position);
        }
        skip_field(wire_type, number, &mut message, DecodeContext::default()).map_err(malformed)?;
    }
    if missing == 0 {
        return Ok(());
    }
    let missing_numbers = (0..required.len())
        .filter(|position| missing >> position & 1 == 1)
        .map(|position| required[position]);
    let missing_numbers: Vec<String> = missing_numbers.map(|number| number.to_string()).collect();
    Err(format!("the request lacks required fields: {}", missing_numbers.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_at_the_top_level_only() {
        // 1: "abc" (bytes that would parse as fields), 3: varint 7
        let message = [0x0a, 3, 0x10, 1, 0, 0x18, 7];
        assert_eq!(check_required(&message, &[1, 3]), Ok(()));
        assert_eq!(check_required(&message, &[]), Ok(()));
        let lacks = check_required(&message, &[1, 2, 5]).expect_err("field 2 is only inside field 1");
        assert_eq!(lacks, "the request lacks required fields: 2, 5");
    }

    #[test]
    fn a_truncated_field_is_an_error() {
        assert!(check_required(&[0x0a, 3, 1], &[1, 2]).is_err());
        assert!(check_required(&[0x08], &[1, 2]).is_err());
    }
}
