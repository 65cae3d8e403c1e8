//! Replies of an NTP server, password files and headers.

use super::seed::Seed;
use crate::targets::network_services::{NONCE, PASSWORD, PASSWORDS, USER};

/// A line of `htpasswd -B` with the least cost.
const BCRYPT: &str = "bob:$2b$04$abcdefghijklmnopqrstuuLdlbUYqUBf0KO8q3LQkIoVP4cbnw56i\n";

pub(super) fn seeds() -> Vec<Seed> {
    let header = data_encoding::BASE64.encode(format!("{USER}:{PASSWORD}").as_bytes());
    let mut kiss = reply();
    kiss[1] = 0;
    kiss[12..16].copy_from_slice(b"RATE");
    vec![
        seed("ntp_packet", "reply", reply()),
        seed("ntp_packet", "kiss-of-death", kiss),
        seed("web_passwords", "both-forms", format!("# users\n\n{PASSWORDS}{BCRYPT}").into_bytes()),
        seed("web_password_header", "right", format!("Basic {header}").into_bytes()),
    ]
}

fn seed(target: &'static str, name: &str, bytes: Vec<u8>) -> Seed {
    (target, name.to_string(), bytes)
}

/// Returns the reply of a server of stratum 2 in 2026.
fn reply() -> Vec<u8> {
    let mut packet = vec![0; 48];
    packet[..4].copy_from_slice(&[4 << 3 | 4, 2, 6, 0xec]);
    packet[24..32].copy_from_slice(&NONCE.to_be_bytes());
    let seconds: u64 = (2_208_988_800 + 1_767_225_600) << 32;
    packet[32..40].copy_from_slice(&seconds.to_be_bytes());
    packet[40..].copy_from_slice(&(seconds + 1).to_be_bytes());
    packet
}
