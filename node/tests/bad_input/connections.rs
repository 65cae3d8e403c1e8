//! Faults below the requests: preamble, negotiation, frames, protobufs, names of services and methods.

use engine::schema::row_ops::ClientCell;
use expect_test::expect;
use nyala_common::rpc::negotiate::PREAMBLE;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_preamble_gets_no_reply() {
    let world = World::start(&[]).await;
    let preambles: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nHost: kudu\r\n\r\n",
        b"hrpc\x0a\0\0",
        b"HRPC\x09\0\0",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        b"hrp",
        b"",
    ];
    for addr in [world.tserver(), world.master()] {
        for bytes in preambles {
            let mut raw = Raw::silent(&world.env, addr).await;
            raw.write(bytes).await;
            raw.finish().await;
            assert_eq!(raw.reply().await, None, "{bytes:02x?}");
        }
    }
    world.still_served().await;
    world.stop().await;
}

/// Returns the server's reply to these bytes after the preamble.
async fn negotiation(world: &World, frames: &[&[u8]]) -> String {
    let mut raw = Raw::silent(&world.env, world.tserver()).await;
    raw.write(&[&PREAMBLE[..], &frames.concat()].concat()).await;
    raw.finish().await;
    let mut said = Vec::new();
    while let Some(reply) = raw.reply().await {
        said.push(reply);
    }
    format!("{}\n", said.join(", "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_negotiation_gets_an_error_and_ends() {
    let world = World::start(&[]).await;
    let hello = &ClientNegotiation::new("mallory").hello()[PREAMBLE.len()..];
    let header = b"\x0b\x18\xdf\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    let framed = |body: &[u8]| {
        let length = header.len() + 1 + body.len();
        [&(length as u32).to_be_bytes()[..], header, &[body.len() as u8], body].concat()
    };
    let a_call = call_bytes(0, TABLETS, "Ping", &[], b"");
    let cases: [&[&[u8]]; 8] = [
        &[b"\0\0\0\x03\x02\xff\xff"],
        &[b"\0\0\0\x02\x7f\0"],
        &[&[0xff; 64]],
        &[&framed(&[0xff; 8])],
        &[&framed(b"\x10\x63")],
        &[hello, &framed(b"\x10\x02\x1a\x06\0root\0\x22\x08\x12\x06GSSAPI")],
        &[hello, &framed(b"\x10\x02\x1a\x02\0\0\x22\x07\x12\x05PLAIN")],
        &[&a_call],
    ];
    let mut replies = String::new();
    for frames in cases {
        replies += &negotiation(&world, frames).await;
    }
    expect![[r#"



        FATAL_DESERIALIZING_REQUEST: the negotiation message cannot be decoded
        FATAL_UNAUTHORIZED: Not authorized: expected NEGOTIATE step, got an unknown step
        ok, FATAL_UNAUTHORIZED: Runtime error: SASL(-4): no mechanism available: GSSAPI
        ok, FATAL_UNAUTHORIZED: Not authorized: the PLAIN token names no user
        FATAL_INVALID_RPC_HEADER: call id 0 during the negotiation
    "#]]
    .assert_eq(&replies);
    world.still_served().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn false_lengths_end_their_connection() {
    let world = World::start(&[]).await;
    let ping = call_bytes(1, TABLETS, "Ping", &[], b"\x7a\x03abc");
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = ping.to_vec();
        change(&mut bytes);
        bytes
    };
    let body_length = ping.len() - 6;
    assert_eq!(ping[body_length], 5, "a body of five bytes");
    let lies = [
        // Length of the frame: zero, too small, too large.
        changed(&|bytes| bytes[3] = 0),
        changed(&|bytes| bytes[3] -= 1),
        changed(&|bytes| bytes[3] += 1),
        // Length of the header.
        changed(&|bytes| bytes[4] = 0),
        changed(&|bytes| bytes[4] -= 1),
        changed(&|bytes| bytes[4] = 0x7f),
        // Length of the body: too small, too large, and an unterminated varint.
        changed(&|bytes| bytes[body_length] -= 1),
        changed(&|bytes| bytes[body_length] += 1),
        changed(&|bytes| bytes[body_length..].fill(0xff)),
        // The stream ends inside a frame.
        ping[..ping.len() - 2].to_vec(),
    ];
    for bytes in &lies {
        let mut raw = Raw::negotiated(&world.env, world.tserver()).await;
        raw.write(bytes).await;
        raw.finish().await;
        assert_eq!(raw.reply().await, None, "{bytes:02x?}");
    }
    let mut raw = Raw::negotiated(&world.env, world.tserver()).await;
    raw.write(&ping).await;
    assert_eq!(raw.reply().await.as_deref(), Some("ok"), "and this is how it should have been");
    world.still_served().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_above_the_limit_is_rejected_by_its_first_bytes() {
    let world = World::start(&[("rpc_max_message_size", "1048576")]).await;
    // An unknown field, which the decoder skips, gives the frame an arbitrary length.
    let of_length = |length: usize| {
        let body = |bytes: usize| [&[0x7a][..], &varint(bytes), &vec![7; bytes]].concat();
        let over = call_bytes(1, TABLETS, "Ping", &[], &body(1_000_000)).len() - 4 - 1_000_000;
        call_bytes(1, TABLETS, "Ping", &[], &body(length - over))
    };
    for (length, wanted) in [(1 << 20, Some("ok")), ((1 << 20) + 1, None)] {
        let mut raw = Raw::negotiated(&world.env, world.tserver()).await;
        let bytes = of_length(length);
        assert_eq!(bytes[..4], (length as u32).to_be_bytes());
        raw.write(&bytes).await;
        assert_eq!(raw.reply().await.as_deref(), wanted, "{length} bytes");
    }
    for announced in [(1 << 20) + 1, 1 << 30, u32::MAX] {
        let mut raw = Raw::negotiated(&world.env, world.tserver()).await;
        raw.write(&announced.to_be_bytes()).await;
        assert_eq!(raw.reply().await, None, "the server does not wait for {announced} bytes");
    }
    world.still_served().await;
    world.stop().await;
}

pub(super) fn varint(number: usize) -> Vec<u8> {
    let mut out = Vec::new();
    prost::encode_length_delimiter(number, &mut out).unwrap();
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undecodable_request_gets_an_error() {
    let world = World::start(&[]).await;
    let tserver: &[(&str, &[&str])] = &[
        (TABLETS, &["Write", "Scan", "ScannerKeepAlive", "ListTablets", "SplitKeyRange", "Checksum"]),
        ("kudu.tserver.TabletServerAdminService", &["CreateTablet", "DeleteTablet", "AlterSchema"]),
        ("kudu.consensus.ConsensusService", &["GetConsensusState", "GetLastOpId"]),
        ("kudu.server.GenericService", &["GetFlags", "SetFlag"]),
    ];
    let master: &[(&str, &[&str])] = &[(
        MASTER,
        &[
            "CreateTable",
            "AlterTable",
            "DeleteTable",
            "GetTableSchema",
            "GetTableLocations",
            "GetTabletLocations",
            "ListTables",
            "TSHeartbeat",
        ],
    )];
    for (addr, services) in [(world.tserver(), tserver), (world.master(), master)] {
        let mut raw = Raw::negotiated(&world.env, addr).await;
        for (service, methods) in services {
            for method in *methods {
                for body in [&[0xff; 20][..], b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05ab", b"\x0b\x0b\x0b"] {
                    let reply = raw.call(service, method, &[], body).await;
                    let wanted = format!("ERROR_INVALID_REQUEST: {method}: the request ");
                    assert!(reply.starts_with(&wanted), "{reply} for {body:02x?}");
                }
            }
        }
    }
    // An undecodable header: the call id is unknown.
    let mut raw = Raw::negotiated(&world.env, world.tserver()).await;
    raw.write(b"\0\0\0\x05\x03\xff\xff\xff\0").await;
    assert_eq!(raw.reply().await, None);
    world.still_served().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_services_methods_and_features_are_reported() {
    let world = World::start(&[]).await;
    let mut raw = Raw::negotiated(&world.env, world.tserver()).await;
    let replies = [
        raw.call("kudu.tserver.NoService", "Ping", &[], b"").await,
        raw.call(MASTER, "Ping", &[], b"").await,
        raw.call(TABLETS, "Pong", &[], b"").await,
        raw.call(TABLETS, "", &[], b"").await,
        raw.call(TABLETS, "Ping", &[1, 4711, 99], b"").await,
        raw.call(TABLETS, "Ping", &[], b"").await,
    ];
    expect![[r#"
        ERROR_NO_SUCH_SERVICE: service "kudu.tserver.NoService" is not on this server
        ERROR_NO_SUCH_SERVICE: service "kudu.master.MasterService" is not on this server
        ERROR_NO_SUCH_METHOD: service kudu.tserver.TabletServerService has no method "Pong"
        ERROR_NO_SUCH_METHOD: service kudu.tserver.TabletServerService has no method ""
        ERROR_INVALID_REQUEST: unsupported feature flags [4711, 99]
        ok
    "#]]
    .assert_eq(&(replies.join("\n") + "\n"));
    world.still_served().await;
    world.stop().await;
}

/// Valid requests with some bytes changed. They may succeed or fail, but get a reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_requests_get_a_reply() {
    let world = World::start(&[]).await;
    let other = create(&world.client, "other", schema()).await;
    let tablet = only_tablet(&world.env, &world.cluster, &other).await;
    let (k, n) = (1i32.to_le_bytes(), 2i64.to_le_bytes());
    let row = [ClientCell::Value(&k), ClientCell::Value(b"text"), ClientCell::Value(&n)];
    let write = insert(&tablet, &schema(), &[&row, &row]).encode_to_vec();
    let scan = open(new_scan(&tablet, &["k", "v", "n"])).encode_to_vec();
    let mut rng = ChaCha12Rng::seed_from_u64(7);
    let mut raw = Raw::negotiated(&world.env, world.tserver()).await;
    let (mut fine, mut refused) = (0, 0);
    for _ in 0..400 {
        let mut below = |end: usize| (rng.next_u64() % end as u64) as usize;
        let (method, mut body) =
            if below(2) == 0 { ("Write", write.clone()) } else { ("Scan", scan.clone()) };
        for _ in 0..=below(4) {
            let at = below(body.len());
            match below(4) {
                0 => body[at] ^= 1 << below(8),
                1 => body[at] = below(256) as u8,
                2 => drop(body.remove(at)),
                _ => body.insert(at, 0xff),
            }
        }
        match raw.call(TABLETS, method, &[], &body).await.as_str() {
            "ok" => fine += 1,
            error => {
                assert!(error.starts_with("ERROR_"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(fine > 50 && refused > 50, "{fine} and {refused}");
    world.still_served().await;
    world.stop().await;
}
