//! Binary form of NUMERIC: groups of four decimal digits.
//!
//! `count of groups, weight of the first group, sign, digits after the point`, then the groups.

use bytes::{Buf, BufMut};

/// Sign of a negative number.
const NEGATIVE: u16 = 0x4000;
/// Digits of a group.
const GROUP: usize = 4;

/// Appends `value / 10^scale`. The scale is not negative.
pub(super) fn encode(value: i128, scale: usize, out: &mut impl BufMut) {
    let digits = value.unsigned_abs().to_string();
    let digits = format!("{digits:0>width$}", width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let whole = format!("{whole:0>width$}", width = whole.len().next_multiple_of(GROUP));
    let fraction = format!("{fraction:0<width$}", width = fraction.len().next_multiple_of(GROUP));
    let whole_groups = whole.len() / GROUP;
    let all = format!("{whole}{fraction}");
    let groups = all.as_bytes().chunks(GROUP);
    let groups: Vec<i16> =
        groups.map(|group| group.iter().fold(0, |sum, digit| sum * 10 + i16::from(digit - b'0'))).collect();
    let leading = groups.iter().take_while(|group| **group == 0).count();
    let trailing = groups[leading..].iter().rev().take_while(|group| **group == 0).count();
    let kept = &groups[leading..groups.len() - trailing];
    let weight = if kept.is_empty() { 0 } else { whole_groups as i16 - leading as i16 - 1 };
    out.put_i16(kept.len() as i16);
    out.put_i16(weight);
    out.put_u16(if value < 0 { NEGATIVE } else { 0 });
    out.put_u16(scale as u16);
    kept.iter().for_each(|group| out.put_i16(*group));
}

/// Returns the text of an encoded number; `None` for NaN, infinities and malformed bytes.
pub(super) fn decode(mut bytes: &[u8]) -> Option<String> {
    if bytes.len() < 8 {
        return None;
    }
    let (count, weight) = (usize::from(bytes.get_u16()), i32::from(bytes.get_i16()));
    let (sign, scale) = (bytes.get_u16(), usize::from(bytes.get_u16()));
    if (sign != 0 && sign != NEGATIVE) || bytes.len() != 2 * count {
        return None;
    }
    let groups: Vec<u16> = std::iter::from_fn(|| bytes.has_remaining().then(|| bytes.get_u16())).collect();
    let group = |at: i32| usize::try_from(at).ok().and_then(|at| groups.get(at)).copied().unwrap_or(0);
    if groups.iter().any(|group| *group > 9999) || scale > 1000 || weight > 1000 {
        return None;
    }
    let text = |at: i32| format!("{:04}", group(at));
    let whole: String = (0..=weight).map(text).collect();
    let fraction: String = (weight + 1..).map(text).take(scale.div_ceil(GROUP)).collect();
    let whole = whole.trim_start_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    let sign = if sign == NEGATIVE { "-" } else { "" };
    let fraction = &fraction[..scale];
    Some(if scale == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(value: i128, scale: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(value, scale, &mut bytes);
        bytes
    }

    #[test]
    fn numbers_have_the_groups_of_the_protocol() {
        // 12345.678: the groups 1, 2345, 6780.
        assert_eq!(encoded(12_345_678, 3), [0, 3, 0, 1, 0, 0, 0, 3, 0, 1, 0x09, 0x29, 0x1a, 0x7c]);
        // -0.00005: one group, 5000, of weight -2.
        assert_eq!(encoded(-5, 5), [0, 1, 0xff, 0xfe, 0x40, 0, 0, 5, 0x13, 0x88]);
        assert_eq!(encoded(0, 2), [0, 0, 0, 0, 0, 0, 0, 2]);
    }

    #[test]
    fn numbers_come_back_as_text() {
        let cases = [
            (12_345_678, 3, "12345.678"),
            (-5, 5, "-0.00005"),
            (0, 2, "0.00"),
            (10_000, 0, "10000"),
            (-100_000_000, 4, "-10000.0000"),
            (i128::MAX, 38, "1.70141183460469231731687303715884105727"),
        ];
        for (value, scale, text) in cases {
            assert_eq!(decode(&encoded(value, scale)).as_deref(), Some(text), "{value} {scale}");
        }
        // NaN, and a group above 9999.
        assert_eq!(decode(&[0, 0, 0, 0, 0xc0, 0, 0, 0]), None);
        assert_eq!(decode(&[0, 1, 0, 0, 0, 0, 0, 0, 0x27, 0x10]), None);
    }
}
