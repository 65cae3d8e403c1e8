//! The audit log: lines, rotation, a full disk. Time is paused.

use engine::disk::mem::{DiskOpKind, MemDisk};
use engine::disk::{Disk, read_file};
use expect_test::expect;

use super::*;
use nyala_common::env::mem_net;
use nyala_common::env::testing::{MemDisks, SteadyClock};
use nyala_common::security::AuthnMethod;
use nyala_common::security::audit::AuditOutcome;

const SERVER: Uuid = Uuid([7; 16]);

struct World {
    env: Env,
    disks: Arc<MemDisks>,
    flags: Flags,
    checks: HealthBoard,
}

impl World {
    fn new(flags: &[(&str, &str)]) -> World {
        let env = mem_net::env();
        let disks = Arc::new(MemDisks::default());
        let clock = Arc::new(SteadyClock(env.clock.clone()));
        let env = Env { disks: disks.clone(), clock, ..env };
        let given = Flags::new();
        given.set("audit_log_dir", "audit").expect("a flag");
        flags.iter().for_each(|(name, value)| given.set(name, value).expect("a flag"));
        World { env, disks, flags: given, checks: HealthBoard::default() }
    }

    async fn open(&self) -> Arc<AuditLog> {
        self.try_open().await.expect("it can be written").expect("it is on")
    }

    async fn try_open(&self) -> Result<Option<Arc<AuditLog>>> {
        AuditLog::open(&self.env, SERVER, &self.flags, &self.checks).await
    }

    fn disk(&self) -> MemDisk {
        self.disks.disk("audit")
    }

    fn files(&self) -> Vec<String> {
        let disk = self.disk();
        let read = |name: &String| String::from_utf8(read_file(&disk, name).expect("a file")).expect("ASCII");
        disk.list("").expect("names").iter().map(read).collect()
    }
}

fn event(action: &str, outcome: AuditOutcome) -> AuditEvent {
    AuditEvent {
        user: Some("ann".into()),
        authn: Some(AuthnMethod::Plain),
        remote: ([10, 0, 0, 1], 7).into(),
        action: action.to_string(),
        subject: Some("sales.orders".to_string()),
        outcome,
    }
}

#[test]
fn a_name_cannot_break_a_line() {
    let mut lines = String::new();
    let hostile = AuditEvent {
        user: Some("eve\n{\"user\":\"root\"}\u{1b}[2K\u{202e}\u{7f}".into()),
        subject: Some("täble \u{10ffff}\"\\".to_string()),
        ..event("S.DeleteTable", AuditOutcome::Denied("no\r\nright".to_string()))
    };
    line::push_event(&mut lines, SERVER, 1_700_000_000_123_456, &hostile);
    let failed = AuditEvent {
        user: None,
        authn: None,
        subject: None,
        ..event("authentication", AuditOutcome::Allowed)
    };
    line::push_event(&mut lines, SERVER, 0, &failed);
    line::push_lost(&mut lines, SERVER, 0, 3);
    expect![[r#"
        {"time":"2023-11-14T22:13:20.123456Z","server":"07070707070707070707070707070707","user":"eve\n{\"user\":\"root\"}\u001b[2K\u202e\u007f","authn":"none","remote":"10.0.0.1:7","action":"S.DeleteTable","subject":"t\u00e4ble \udbff\udfff\"\\","outcome":"denied","reason":"no\r\nright"}
        {"time":"1970-01-01T00:00:00.000000Z","server":"07070707070707070707070707070707","user":null,"authn":null,"remote":"10.0.0.1:7","action":"authentication","subject":null,"outcome":"allowed","reason":null}
        {"time":"1970-01-01T00:00:00.000000Z","server":"07070707070707070707070707070707","action":"events lost","count":3}
    "#]]
    .assert_eq(&lines);
    assert!(lines.bytes().all(|byte| matches!(byte, b'\n' | b' '..=b'~')));
    let back: serde_json::Value = serde_json::from_str(lines.lines().next().expect("a line")).expect("JSON");
    assert_eq!(back["user"], hostile.user.as_deref().expect("a user"));
    assert_eq!(back["subject"], hostile.subject.as_deref().expect("a subject"));
    let long = AuditEvent { subject: Some("x".repeat(100_000)), ..event("S.M", AuditOutcome::Allowed) };
    lines.clear();
    line::push_event(&mut lines, SERVER, 0, &long);
    assert!(lines.len() < 2_000);
}

#[tokio::test(start_paused = true)]
async fn files_are_rotated_and_continued() {
    let world = World::new(&[("audit_log_file_size_mb", "1"), ("audit_log_files_max", "3")]);
    let log = world.open().await;
    let long = "x".repeat(1_000);
    for number in 0..4_000 {
        log.record(event(&format!("{number} {long}"), AuditOutcome::Allowed));
        if number % 1_000 == 999 {
            log.flush().await;
        }
    }
    let files = world.files();
    assert_eq!(files.len(), 3, "the oldest are removed");
    assert!(files.iter().all(|file| file.len() <= 1 << 20 && file.ends_with('\n')));
    let last = files[2].lines().last().expect("a line").to_string();
    assert!(last.contains("\"action\":\"3999 xxx"), "{last}");
    // Another start continues the last file, after a line that a crash tore.
    let name = world.disk().list("").expect("names").pop().expect("a file");
    world.disk().open(&name).expect("a file").append(b"{\"time\":").expect("space");
    let again = world.open().await;
    again.record(event("after a crash", AuditOutcome::Allowed));
    again.flush().await;
    let last = world.files().pop().expect("a file");
    let lines: Vec<&str> = last.lines().rev().take(2).collect();
    assert!(lines[0].contains("after a crash") && lines[1] == "{\"time\":", "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_is_reported_and_nothing_of_the_queue_is_lost() {
    for required in ["false", "true"] {
        let world = World::new(&[("audit_log_required", required)]);
        let log = world.open().await;
        log.record(event("first", AuditOutcome::Allowed));
        log.flush().await;
        world.disk().fail_some(DiskOpKind::Append, 1_000, 28);
        for number in 0..WAITING_MAX + BATCH_MAX + 5 {
            log.record(event(&format!("number {number}"), AuditOutcome::Allowed));
            if number == BATCH_MAX {
                world.env.sleep(RETRY_INTERVAL * 2).await;
            }
        }
        let check = log.check();
        let text = "cannot be written";
        match (&check.result, required) {
            (CheckResult::Warning(why), "false") | (CheckResult::Failed(why), "true") => {
                assert!(why.starts_with(text) && why.contains("are lost"), "{why}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(log.refusal().is_some(), required == "true");
        world.disk().end_faults();
        world.env.sleep(RETRY_INTERVAL * 2).await;
        log.flush().await;
        assert_eq!(log.refusal(), None);
        let lines: Vec<String> = world.files().concat().lines().map(str::to_string).collect();
        let numbered = lines.iter().filter(|line| line.contains("number ")).count();
        let lost: u64 = lines
            .iter()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("whole lines"))
            .filter_map(|line| line["count"].as_u64())
            .sum();
        assert!(
            lost > 0 && numbered as u64 + lost == (WAITING_MAX + BATCH_MAX + 5) as u64,
            "{numbered} {lost}"
        );
        assert!(matches!(log.check().result, CheckResult::Warning(_)), "lost events stay visible");
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_written_ends_the_start() {
    let world = World::new(&[]);
    world.disk().fail_some(DiskOpKind::Other, 1_000, 28);
    assert!(world.try_open().await.is_err());
    assert!(matches!(
        world.flags.change("audit_log_dir", "", true),
        Err(crate::server::flags::FlagError::NotSafe(_))
    ));
}
