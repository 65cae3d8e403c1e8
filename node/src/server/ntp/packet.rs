//! Packets of SNTP, version 4.
//!
//! ```text
//!    0  leap indicator, version, mode   1  stratum   2  poll   3  precision
//!    4  root delay   8  root dispersion   12  reference id   16  reference time
//!   24  originate time   32  receive time   40  transmit time
//! ```
//!
//! Times are seconds since 1900 and a fraction, 32 bits each. Source: RFC 5905 §7.3, §7.4, §14.

/// Bytes of a packet without extensions.
pub const PACKET_BYTES: usize = 48;

const CLIENT_V4: u8 = 4 << 3 | 3;
const MODE_SERVER: u8 = 4;
const LEAP_UNSYNCHRONISED: u8 = 3;
const STRATUM_MAX: u8 = 15;
/// Seconds from 1900 to 1970.
const EPOCH_1970_S: u64 = 2_208_988_800;
/// Largest root distance, in microseconds, of a server that is of use.
const ROOT_DISTANCE_MAX_US: u64 = 1_500_000;

/// Reason that a packet gives no time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PacketFault {
    /// No reply to the request: too short, of another mode, or with another originate time. The real one may follow.
    NotAReply(&'static str),
    /// The server asks for fewer requests, or none.
    KissOfDeath(String),
    /// The server does not know the time itself.
    Useless(&'static str),
}

/// Times of a server's reply, in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerTimes {
    pub received: u64,
    pub sent: u64,
    /// Bound of the server's own error when it sent.
    pub error: u64,
}

/// Returns a request. The server returns `nonce` as the originate time, so only a server that sees the request can
/// reply.
pub fn request(nonce: u64) -> [u8; PACKET_BYTES] {
    let mut packet = [0; PACKET_BYTES];
    packet[0] = CLIENT_V4;
    packet[40..].copy_from_slice(&nonce.to_be_bytes());
    packet
}

/// Returns the times in the reply to the request with `nonce`.
pub fn parse(packet: &[u8], nonce: u64) -> Result<ServerTimes, PacketFault> {
    if packet.len() < PACKET_BYTES {
        return Err(PacketFault::NotAReply("it is too short"));
    }
    let u32_at = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_be_bytes(packet[at..at + 8].try_into().expect("eight bytes"));
    if packet[0] & 7 != MODE_SERVER {
        return Err(PacketFault::NotAReply("it is of no server"));
    }
    if u64_at(24) != nonce {
        return Err(PacketFault::NotAReply("its originate time is not that of the request"));
    }
    let (leap, stratum) = (packet[0] >> 6, packet[1]);
    if stratum == 0 {
        let code = packet[12..16].iter().map(|byte| char::from(*byte)).filter(char::is_ascii_graphic);
        return Err(PacketFault::KissOfDeath(code.collect()));
    }
    if leap == LEAP_UNSYNCHRONISED || stratum > STRATUM_MAX {
        return Err(PacketFault::Useless("it is not synchronised itself"));
    }
    let (received, sent) = (u64_at(32), u64_at(40));
    if received == 0 || sent == 0 {
        return Err(PacketFault::Useless("it gives no time"));
    }
    let error = short_micros(u32_at(4)) / 2 + short_micros(u32_at(8)) + precision_micros(packet[3]);
    if error > ROOT_DISTANCE_MAX_US {
        return Err(PacketFault::Useless("its own error is too large"));
    }
    let times = ServerTimes { received: micros(received), sent: micros(sent), error };
    match times.sent < times.received {
        true => Err(PacketFault::Useless("it replied before the request")),
        false => Ok(times),
    }
}

/// Converts a timestamp. The first bit of the seconds tells the era: clear from 2036 on.
fn micros(timestamp: u64) -> u64 {
    let (seconds, fraction) = (timestamp >> 32, timestamp & u64::from(u32::MAX));
    let era = if seconds >> 31 == 0 { 1 << 32 } else { 0 };
    (seconds + era).saturating_sub(EPOCH_1970_S) * 1_000_000 + ((fraction * 1_000_000) >> 32)
}

/// Converts a short time: 16 bits of seconds, 16 of a fraction.
fn short_micros(short: u32) -> u64 {
    (u64::from(short) * 1_000_000) >> 16
}

/// Converts a precision: the logarithm of seconds to the base two, as a signed byte.
fn precision_micros(precision: u8) -> u64 {
    let log = i32::from(precision as i8).clamp(-20, 4);
    (f64::powi(2.0, log) * 1e6).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reply of 2026-01-01 that a server might send.
    fn reply(nonce: u64) -> [u8; PACKET_BYTES] {
        let mut packet = [0; PACKET_BYTES];
        packet[..4].copy_from_slice(&[4 << 3 | MODE_SERVER, 2, 6, -20i8 as u8]);
        packet[4..8].copy_from_slice(&(65_536u32 / 10).to_be_bytes());
        packet[8..12].copy_from_slice(&(65_536u32 / 100).to_be_bytes());
        packet[24..32].copy_from_slice(&nonce.to_be_bytes());
        let seconds = (EPOCH_1970_S + 1_767_225_600) << 32;
        packet[32..40].copy_from_slice(&seconds.to_be_bytes());
        packet[40..48].copy_from_slice(&(seconds + (1 << 31)).to_be_bytes());
        packet
    }

    fn changed(change: impl Fn(&mut [u8; PACKET_BYTES])) -> Result<ServerTimes, PacketFault> {
        let mut packet = reply(7);
        change(&mut packet);
        parse(&packet, 7)
    }

    #[test]
    fn a_request_carries_the_nonce_and_nothing_of_the_client() {
        let packet = request(0x0102_0304_0506_0708);
        assert_eq!(packet[0], 0x23);
        assert!(packet[1..40].iter().all(|byte| *byte == 0));
        assert_eq!(packet[40..], [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn a_reply_gives_times_and_the_servers_error() {
        let received = 1_767_225_600_000_000;
        let times = parse(&reply(7), 7).expect("a good reply");
        assert_eq!((times.received, times.sent), (received, received + 500_000));
        assert!(
            (59_900..60_100).contains(&times.error),
            "half the delay and the dispersion: {}",
            times.error
        );
        assert_eq!(micros(1 << 63), 0, "1968: no time that a server tells");
        assert_eq!(micros(0), 2_085_978_496_000_000, "2036-02-07, when the seconds begin anew");
    }

    #[test]
    fn other_packets_are_refused() {
        use PacketFault::{KissOfDeath, NotAReply, Useless};
        let not = |fault| Err(fault);
        assert_eq!(parse(&reply(7)[..47], 7), not(NotAReply("it is too short")));
        assert_eq!(parse(&reply(7), 8), not(NotAReply("its originate time is not that of the request")));
        assert_eq!(changed(|packet| packet[0] = CLIENT_V4), not(NotAReply("it is of no server")));
        let kiss = |packet: &mut [u8; PACKET_BYTES]| {
            packet[1] = 0;
            packet[12..16].copy_from_slice(b"RATE");
        };
        assert_eq!(changed(kiss), not(KissOfDeath("RATE".to_string())));
        let unsynchronised = not(Useless("it is not synchronised itself"));
        assert_eq!(changed(|packet| packet[0] |= 3 << 6), unsynchronised);
        assert_eq!(changed(|packet| packet[1] = 16), unsynchronised);
        assert_eq!(changed(|packet| packet[40..].fill(0)), not(Useless("it gives no time")));
        assert_eq!(changed(|packet| packet[9] = 9), not(Useless("its own error is too large")));
        assert_eq!(changed(|packet| packet[40] -= 1), not(Useless("it replied before the request")));
    }
}
