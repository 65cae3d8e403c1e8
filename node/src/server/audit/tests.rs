//! The audit log: lines, rotation, a full disk, a flood of denials. Time is paused.

use engine::disk::mem::{DiskOpKind, MemDisk};
use engine::disk::{Disk, read_file};
use expect_test::expect;

use super::event_writer::{BATCH_MAX, RETRY_INTERVAL};
use super::*;
use nyala_common::env::mem_net;
use nyala_common::env::testing::{MemDisks, SteadyClock};
use nyala_common::security::AuthnMethod;

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

    /// Returns the files of allowed and failed actions.
    fn files(&self) -> Vec<String> {
        self.read_files(|name| !name.contains(".denied."))
    }

    /// Returns the lines of denials.
    fn denials(&self) -> Vec<serde_json::Value> {
        let files = self.read_files(|name| name.contains(".denied."));
        files.concat().lines().map(|line| serde_json::from_str(line).expect("whole lines")).collect()
    }

    fn read_files(&self, is_chosen: impl Fn(&str) -> bool) -> Vec<String> {
        let disk = self.disk();
        let read = |name: &String| String::from_utf8(read_file(&disk, name).expect("a file")).expect("ASCII");
        disk.list("").expect("names").iter().filter(|name| is_chosen(name)).map(read).collect()
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
}

#[test]
fn events_that_wait_have_short_texts() {
    // A character of 3 bytes: the limit of 1,024 bytes is inside one.
    let long = "\u{20ac}".repeat(100_000);
    let short = line::with_short_texts(AuditEvent {
        user: Some(long.as_str().into()),
        subject: Some(long.clone()),
        ..event(&long, AuditOutcome::Denied(long.clone()))
    });
    let cut = &long[..1_023];
    let (user, subject) = (short.user.as_deref(), short.subject.as_deref());
    assert_eq!((user, short.action.as_str(), subject), (Some(cut), cut, Some(cut)));
    assert_eq!(short.outcome, AuditOutcome::Denied(cut.to_string()));
    let plain = event("S.M", AuditOutcome::Failed("why".to_string()));
    assert_eq!(line::with_short_texts(plain.clone()), plain);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_denials_displaces_no_other_event() {
    let flags =
        [("audit_log_required", "true"), ("audit_log_file_size_mb", "1"), ("audit_log_files_max", "2")];
    let world = World::new(&flags);
    let log = world.open().await;
    // A text that is as long as it can be in a file.
    let denied = || AuditOutcome::Denied("\u{1f600}".repeat(1_024));
    let unproved = || AuditOutcome::FailedUnproved("\u{1f600}".repeat(1_024));
    log.record(event("before", AuditOutcome::Allowed));
    (0..10_000).for_each(|_| log.record(event("S.DropTable", unproved())));
    (0..10_000).for_each(|_| log.record(event("S.DropTable", denied())));
    assert_eq!(log.refusal(), None, "denials reject no call");
    log.record(event("S.DropTable", AuditOutcome::Allowed));
    log.flush().await;
    let files = world.files();
    let actions: Vec<&str> = files.iter().flat_map(|file| file.lines()).collect();
    assert!(
        matches!(actions[..], [first, second] if first.contains("before") && second.contains("DropTable")),
        "{actions:?}"
    );
    let denials = world.denials();
    assert!(denials.iter().any(|line| line["outcome"] == "failed"));
    let lost: u64 = denials.iter().filter_map(|line| line["count"].as_u64()).sum();
    assert_eq!(lost, 20_000 - DENIALS_WAITING_MAX as u64);
    assert_eq!(log.check().result, CheckResult::Ok(format!("1002 events written, {lost} denials lost")));
    // More denials than their files can have take their own files only.
    for _ in 0..3 {
        (0..DENIALS_WAITING_MAX).for_each(|_| log.record(event("S.DropTable", denied())));
        log.flush().await;
        assert!(world.denials().iter().any(|line| line["outcome"] == "denied"));
    }
    assert!(world.denials().len() < 4 * DENIALS_WAITING_MAX, "the oldest are removed");
    assert_eq!(world.files(), files);
}

#[tokio::test(start_paused = true)]
async fn denials_that_cannot_be_written_reject_no_call() {
    let world = World::new(&[("audit_log_required", "true")]);
    let log = world.open().await;
    world.disk().fail_some(DiskOpKind::Append, 1_000, 28);
    log.record(event("S.DropTable", AuditOutcome::Denied("no right".to_string())));
    world.env.sleep(RETRY_INTERVAL * 2).await;
    let CheckResult::Warning(why) = log.check().result else { panic!("{:?}", log.check()) };
    assert!(why.starts_with("denials: cannot be written"), "{why}");
    assert_eq!(log.refusal(), None);
    world.disk().end_faults();
    log.flush().await;
    assert_eq!(log.check().result, CheckResult::Ok("1 events written".to_string()));
    assert_eq!(world.denials().len(), 1);
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
    let names = world.disk().list("").expect("names");
    let name = names.iter().rfind(|name| !name.contains("denied")).expect("a file");
    world.disk().open(name).expect("a file").append(b"{\"time\":").expect("space");
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
        for number in 0..ACTIONS_WAITING_MAX + BATCH_MAX + 5 {
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
            lost > 0 && numbered as u64 + lost == (ACTIONS_WAITING_MAX + BATCH_MAX + 5) as u64,
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
