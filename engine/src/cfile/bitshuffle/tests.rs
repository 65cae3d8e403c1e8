use proptest::prelude::*;

use super::*;

fn round_trip(bytes: &[u8], width: usize, sign: Signedness) -> usize {
    let mut packed = Vec::new();
    pack(bytes, width, sign, &mut packed);
    let mut out = Vec::new();
    let mut input = ByteReader::new(&packed);
    unpack(&mut input, bytes.len() / width, width, &mut out).unwrap();
    input.finish().unwrap();
    assert_eq!(out, bytes);
    packed.len()
}

/// Packs cells of up to eight bytes bit by bit, as the module header describes, without compression. Returns header and
/// planes.
fn planes_by_hand(cells: &[u64], width: usize, sign: Signedness) -> (Vec<u8>, Vec<u8>) {
    let unused = 64 - 8 * width as u32;
    let order = |cell: u64| match sign {
        Signedness::Unsigned => i128::from(cell),
        Signedness::Signed => i128::from((cell << unused) as i64 >> unused),
    };
    let base = cells.iter().copied().min_by_key(|cell| order(*cell)).unwrap_or(0);
    let above: Vec<u64> = cells.iter().map(|cell| (order(*cell) - order(base)) as u64).collect();
    let bits = 64 - above.iter().max().copied().unwrap_or(0).leading_zeros();
    let header = [&[0, bits as u8][..], &base.to_le_bytes()[..width]].concat();
    let mut planes = Vec::new();
    for chunk in above.chunks(2048) {
        for plane in 0..bits {
            let byte = |eight: &[u64]| {
                eight.iter().rev().fold(0, |byte, value| byte << 1 | (value >> plane & 1) as u8)
            };
            planes.extend(chunk.chunks(8).map(byte));
        }
    }
    (header, planes)
}

fn packed_by_hand(cells: &[u64], width: usize, sign: Signedness) -> Vec<u8> {
    let (mut out, planes) = planes_by_hand(cells, width, sign);
    let small = lz4_flex::block::compress(&planes);
    if small.len() + 4 < (planes.len() * 7).div_ceil(8) {
        out[0] = 1;
        out.extend((small.len() as u32).to_le_bytes());
        out.extend(small);
    } else {
        out.extend(planes);
    }
    out
}

/// Returns the lowest `width` bytes of each value.
fn cut(values: &[u64], width: usize) -> (Vec<u64>, Vec<u8>) {
    let cells: Vec<u64> = values.iter().map(|value| value & u64::MAX >> (64 - 8 * width)).collect();
    let bytes = cells.iter().flat_map(|cell| cell.to_le_bytes()[..width].to_vec()).collect();
    (cells, bytes)
}

/// Generates values of a few bits, some far apart, and runs of them.
fn values() -> impl Strategy<Value = Vec<u64>> {
    (prop::collection::vec(any::<u64>(), 0..300), 0u32..64, any::<u64>(), 1usize..20, any::<bool>()).prop_map(
        |(values, shift, base, repeat, runs)| {
            let near = values.iter().map(|value| base.wrapping_add(value >> shift));
            if runs { near.flat_map(|value| vec![value; repeat]).collect() } else { near.collect() }
        },
    )
}

#[test]
fn small_inputs_have_their_stored_form() {
    let packed = |values: &[u32]| {
        let mut out = Vec::new();
        pack_u32(values, &mut out);
        out
    };
    assert_eq!(packed(&[]), [0, 0, 0, 0, 0, 0]);
    assert_eq!(packed(&[300]), [0, 0, 44, 1, 0, 0]);
    assert_eq!(packed(&[2, 3, 5]), [0, 2, 2, 0, 0, 0, 0b110, 0b100]);
}

#[test]
fn damaged_packed_values_are_rejected() {
    let unpacked = |bytes: &[u8], width| unpack(&mut ByteReader::new(bytes), 1, width, &mut Vec::new());
    assert!(unpacked(&[0, 8, 1, 0, 0, 0, 0, 0, 0, 0, 0], 1).is_ok());
    let rejected: [(&[u8], usize); 4] =
        [(&[0, 9, 1], 1), (&[2, 0, 1], 1), (&[0, 0, 1, 2, 3], 3), (&[0, 1, 1], 1)];
    let messages = rejected.map(|(bytes, width)| unpacked(bytes, width).expect_err("rejected").to_string());
    expect_test::expect![[r#"
        packed values have flags 0 and 9 bits
        packed values have flags 2 and 0 bits
        cells of 3 bytes are never packed
        1 bytes are needed at offset 3 but only 0 are left
    "#]]
    .assert_eq(&(messages.join("\n") + "\n"));
}

#[test]
fn equal_values_take_no_planes() {
    let bytes: Vec<u8> = (-7i64).to_le_bytes().repeat(5000);
    assert_eq!(round_trip(&bytes, 8, Signedness::Signed), 10);
}

#[test]
fn close_values_take_few_bits_on_either_side_of_zero() {
    let bytes: Vec<u8> = (-4i32..4).flat_map(i32::to_le_bytes).collect();
    assert_eq!(round_trip(&bytes, 4, Signedness::Signed), 2 + 4 + 3);
    assert!(round_trip(&bytes, 4, Signedness::Unsigned) > 2 + 4 + 3);
}

#[test]
fn counting_up_compresses_well() {
    let bytes: Vec<u8> = (0..100_000u64).flat_map(|i| (1 << 40 | i).to_le_bytes()).collect();
    assert!(round_trip(&bytes, 8, Signedness::Unsigned) < bytes.len() / 20);
}

proptest! {
    /// Every build unpacks what another build packed. Round trips alone would not notice a moved plane.
    #[test]
    fn packing_agrees_with_a_bitwise_reference(
        values in values(),
        width in prop::sample::select(vec![1usize, 2, 4, 8]),
        signed: bool,
    ) {
        let sign = if signed { Signedness::Signed } else { Signedness::Unsigned };
        let (cells, bytes) = cut(&values, width);
        let mut packed = Vec::new();
        pack(&bytes, width, sign, &mut packed);
        prop_assert_eq!(&packed, &packed_by_hand(&cells, width, sign));
        let (mut header, planes) = planes_by_hand(&cells, width, sign);
        header.extend(planes);
        let mut out = vec![9];
        unpack(&mut ByteReader::new(&header), cells.len(), width, &mut out).expect("without compression");
        prop_assert_eq!(&out[1..], &bytes[..], "appended to the existing bytes");
    }

    #[test]
    fn wide_cells_are_low_halves_then_high_halves(low in values(), signed: bool) {
        let sign = if signed { Signedness::Signed } else { Signedness::Unsigned };
        let high: Vec<u64> = low.iter().map(|value| value.rotate_left(7)).collect();
        let cell = |(low, high): (&u64, &u64)| [low.to_le_bytes(), high.to_le_bytes()].concat();
        let bytes: Vec<u8> = low.iter().zip(&high).flat_map(cell).collect();
        let mut packed = Vec::new();
        pack(&bytes, 16, sign, &mut packed);
        let halves = [packed_by_hand(&low, 8, Signedness::Unsigned), packed_by_hand(&high, 8, sign)];
        prop_assert_eq!(packed, halves.concat());
    }

    #[test]
    fn packed_values_round_trip(
        values in prop::collection::vec(any::<u64>(), 0..600),
        keep_bits in 0u32..=64,
        width in prop::sample::select(vec![1usize, 2, 4, 8, 16]),
        signed: bool,
        repeat in 1usize..8,
    ) {
        let mask = u64::MAX.checked_shr(64 - keep_bits).unwrap_or(0);
        let mut bytes: Vec<u8> = values.iter().flat_map(|v| (v & mask).to_le_bytes()).collect();
        bytes = bytes.repeat(repeat);
        bytes.truncate(bytes.len() / width * width);
        round_trip(&bytes, width, if signed { Signedness::Signed } else { Signedness::Unsigned });
    }

    #[test]
    fn arbitrary_bytes_are_rejected_or_read_but_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        count in 0usize..5000,
        width in prop::sample::select(vec![1usize, 2, 4, 8, 16]),
        lz4: bool,
    ) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = u8::from(lz4);
        }
        let mut out = Vec::new();
        let _ = unpack(&mut ByteReader::new(&bytes), count, width, &mut out);
        prop_assert!(out.len() <= count * width);
    }
}
