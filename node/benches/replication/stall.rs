//! Writes while a server's disk stalls: each server has its files on a separate file system, which is frozen and
//! thawed. This needs root; without it the bench prints so and measures nothing.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::servers::{COUNT, Servers, TABLET};

const WRITERS: u8 = 4;
const ROUNDS: usize = 5;
const STILL: Duration = Duration::from_secs(5);
const CALM: Duration = Duration::from_secs(5);
/// Time for servers to catch up after a stall.
const SETTLE: Duration = Duration::from_secs(3);
const IMAGE_BYTES: u64 = 1 << 30;

/// A file system in a file.
struct Disk {
    dir: PathBuf,
}

impl Disk {
    fn mount(image: &Path, dir: PathBuf) -> Option<Disk> {
        File::create(image).and_then(|file| file.set_len(IMAGE_BYTES)).expect("a file can be made");
        std::fs::create_dir_all(&dir).expect("a folder can be made");
        let formatted = run("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), image]);
        let mounted = formatted && run("mount", &["-o".as_ref(), "loop".as_ref(), image, &dir]);
        // A server accepts an empty directory only.
        let emptied = mounted && std::fs::remove_dir(dir.join("lost+found")).is_ok();
        emptied.then_some(Disk { dir })
    }

    fn freeze(&self) {
        assert!(run("fsfreeze", &["-f".as_ref(), &self.dir]), "it is ours, and not frozen yet");
    }

    fn thaw(&self) {
        assert!(run("fsfreeze", &["-u".as_ref(), &self.dir]), "it is frozen");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &["-l".as_ref(), &self.dir]);
    }
}

fn run(program: &str, words: &[&Path]) -> bool {
    Command::new(program).args(words).status().is_ok_and(|status| status.success())
}

/// Prints the latency of writes: undisturbed, with a follower's disk frozen, with the leader's.
pub(crate) async fn measure() {
    let images = tempfile::tempdir().expect("a folder can be made");
    let mut servers = Servers::planned(&[]);
    let image = |number: usize| images.path().join(number.to_string());
    let disks = (0..COUNT).map(|number| Disk::mount(&image(number), servers.dir(number)));
    let Some(disks) = disks.collect::<Option<Vec<Disk>>>() else {
        println!("no disk is frozen: it takes the rights of root and a loop device to mount one");
        return;
    };
    servers.launch().await;
    servers.create(TABLET).await;
    let (mut calm, mut follower, mut leader) = (Vec::new(), Vec::new(), Vec::new());
    let mut next = 0;
    for _ in 0..ROUNDS {
        calm.extend(writes(&servers, &mut next, CALM).await);
        let leads = servers.leader(TABLET).await;
        for (number, times) in [((leads + 1) % COUNT, &mut follower), (leads, &mut leader)] {
            disks[number].freeze();
            let during = writes(&servers, &mut next, STILL).await;
            disks[number].thaw();
            times.extend(during);
            servers.env.sleep(SETTLE).await;
        }
    }
    report("undisturbed", calm);
    report("a follower's disk stands still", follower);
    report("the leader's disk stands still", leader);
    drop(servers);
}

/// Returns the latency of each write of several clients, which write one row after another for `how_long`.
async fn writes(servers: &Servers, next: &mut i64, how_long: Duration) -> Vec<Duration> {
    let (first, over) = (*next, &AtomicBool::new(false));
    let one = async |writer: u8| {
        let (mut key, mut at, mut times) = (first + i64::from(writer), 0, Vec::new());
        while !over.load(Ordering::Relaxed) {
            let began = Instant::now();
            at = servers.insert_at(TABLET, key, writer, at).await;
            times.push(began.elapsed());
            key += i64::from(WRITERS);
        }
        (key, times)
    };
    let all = futures_util::future::join_all((0..WRITERS).map(one));
    let end = async {
        servers.env.sleep(how_long).await;
        over.store(true, Ordering::Relaxed);
    };
    let (written, ()) = futures_util::future::join(all, end).await;
    *next = written.iter().map(|(key, _)| *key).max().unwrap_or(first);
    written.into_iter().flat_map(|(_, times)| times).collect()
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |per_mille: usize| times[(times.len() - 1) * per_mille / 1000].as_secs_f64() * 1e3;
    let (half, most, longest) = (at(500), at(990), at(1000));
    println!(
        "{what}: {} writes, median {half:.1} ms, p99 {most:.1} ms, longest {longest:.1} ms",
        times.len()
    );
}
