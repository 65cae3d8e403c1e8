//! Inputs of services beside RPC: replies of NTP servers, and passwords of the web port.

use node::server::ntp::packet::{PACKET_BYTES, PacketFault, parse, request};
use node::server::web_access::passwords::WebPasswords;

/// Nonce of every request that the target's packets reply to.
pub const NONCE: u64 = 7;
/// User of the password file among the seeds.
pub const USER: &str = "ann";
/// Password of [`USER`].
pub const PASSWORD: &str = "secret";
/// Domain of all files.
const DOMAIN: &str = "kudu";
/// A file of one user: the MD5 of `ann:kudu:secret`.
pub const PASSWORDS: &str = "ann:kudu:96661852dc8fe8ea04fe748345abe2ff\n";
/// Latest time that 32 bits of seconds can tell in either era, in microseconds since 1970.
const LATEST_MICROS: u64 = (1 << 32) * 1_000_000;

/// Checks a reply of an NTP server: only a reply to the request gives times, and these are in order.
pub(super) fn ntp_packet(data: &[u8]) {
    match parse(data, NONCE) {
        Ok(times) => {
            assert!(times.received <= times.sent, "it replied before the request");
            assert!(times.sent < LATEST_MICROS * 2 && times.error <= 1_500_000, "{times:?}");
            assert_eq!(data[24..32], NONCE.to_be_bytes(), "the reply to another request");
            let other = parse(data, NONCE + 1);
            assert!(matches!(other, Err(PacketFault::NotAReply(_))), "{other:?}");
        }
        Err(PacketFault::NotAReply(why) | PacketFault::Useless(why)) => assert!(!why.is_empty()),
        Err(PacketFault::KissOfDeath(code)) => {
            assert!(code.len() <= 4 && code.chars().all(|c| c.is_ascii_graphic()), "{code:?}");
        }
    }
    // A request is no reply, not even to itself.
    let sent = request(NONCE);
    assert_eq!(sent.len(), PACKET_BYTES);
    assert!(parse(&sent, NONCE).is_err());
}

/// Checks a password file: errors name file and line and have no part of a hash.
pub(super) fn web_passwords(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match WebPasswords::parse(text, DOMAIN, "users") {
        Ok(passwords) => assert_eq!(passwords.challenge(), "Basic realm=\"kudu\", charset=\"UTF-8\""),
        Err(error) => {
            assert!(error.message.starts_with("users"), "{}", error.message);
            let hashes = text.lines().filter_map(|line| line.rsplit_once(':')).map(|(_, hash)| hash.trim());
            for hash in hashes.filter(|hash| hash.len() >= 32) {
                assert!(!error.message.contains(hash), "a hash in an error");
            }
        }
    }
}

/// Checks a header `Authorization`: only the user of the file with the password is accepted.
pub(super) fn web_password_header(data: &[u8]) {
    let Ok(header) = std::str::from_utf8(data) else { return };
    let passwords = WebPasswords::parse(PASSWORDS, DOMAIN, "users").expect("a file");
    let accepted = passwords.accepts(header);
    // Again, from the headers that were accepted before.
    assert_eq!(passwords.accepts(header), accepted);
    if accepted {
        let encoded = header.split_once(' ').expect("a scheme").1.trim();
        let decoded = data_encoding::BASE64.decode(encoded.as_bytes()).expect("an accepted header is Base64");
        assert_eq!(decoded, format!("{USER}:{PASSWORD}").as_bytes(), "a forged password");
    }
}
