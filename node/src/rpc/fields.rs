//! A look at a protobuf message's top level without decoding it: are the required fields there?
//!
//! proto2 has required fields; the decoder fills missing ones in. A request that lacks one is a mistake of the
//! caller that must be answered as such, not run with a zero in its place.

use prost::encoding::{DecodeContext, decode_key, skip_field};

/// Checks that `message` is made of whole fields and has each of the numbers in `required` (up to 64 of them).
pub(super) fn check_required(mut message: &[u8], required: &[u32]) -> Result<(), String> {
    if required.is_empty() {
        return Ok(());
    }
    let mut missing = u64::MAX >> (64 - required.len().min(64));
    while !message.is_empty() && missing != 0 {
        let broken = |error| format!("the request cannot be decoded: {error}");
        let (number, wire_type) = decode_key(&mut message).map_err(broken)?;
        if let Some(place) = required.iter().position(|&field| field == number) {
            missing &= !(1 << place);
        }
        skip_field(wire_type, number, &mut message, DecodeContext::default()).map_err(broken)?;
    }
    if missing == 0 {
        return Ok(());
    }
    let lacking = (0..required.len()).filter(|place| missing >> place & 1 == 1).map(|place| required[place]);
    let lacking: Vec<String> = lacking.map(|number| number.to_string()).collect();
    Err(format!("the request lacks required fields: {}", lacking.join(", ")))
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
        let lacks = check_required(&message, &[1, 2, 5]).expect_err("2 is only inside of 1");
        assert_eq!(lacks, "the request lacks required fields: 2, 5");
    }

    #[test]
    fn half_a_field_is_an_error() {
        assert!(check_required(&[0x0a, 3, 1], &[1, 2]).is_err());
        assert!(check_required(&[0x08], &[1, 2]).is_err());
    }
}
