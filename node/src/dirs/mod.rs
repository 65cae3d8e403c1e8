//! Directories of one server: opened, locked, and checked to belong together.
//!
//! ```text
//! wal dir    instance  instance.lock  wals/<tablet>/…
//! data dir   instance  instance.lock  data/<tablet>/…  tablet-meta/<tablet>
//! ```
//!
//! `instance` names the server that owns the directory, its cluster and its format level; that of the WAL directory
//! also lists the data directories. A server does not start with a directory of another server, of a format level that
//! its program does not support, in use by another process, or without one of its data directories: an empty mount
//! point must not be taken for a new disk. Nor does it start with a data directory that it gave up before: that one has
//! old superblocks. A master does not start without the data directory of its catalog. The error names the directory.

mod check;
mod directory;
mod instance;
mod stopped;

use engine::sync::{Mutex, MutexGuard};
use std::sync::Arc;

use engine::error::{Error, Result};
use engine::format_level::{FormatLevel, LevelRange};
use engine::ids::Uuid;
use nyala_common::env::Env;

pub use directory::{Directory, is_device_failure};
use directory::{INSTANCE, open_directory, open_given_up};
use instance::{Instance, RecordedLevel};
pub use instance::{PROGRAM, ServerKind};
pub use stopped::{StoppedServer, open_stopped};

/// A server's directories and the identity stored in them.
pub struct ServerDirs {
    /// The server's permanent id.
    pub uuid: Uuid,
    pub wal: Arc<Directory>,
    /// At least one; may contain the WAL directory.
    pub data: Vec<Arc<Directory>>,
    /// Stored identity of the WAL directory and of the others.
    instances: Mutex<Vec<(Arc<Directory>, Instance)>>,
}

impl ServerDirs {
    /// Unlocks the directories for another server. The caller must not use them any more.
    pub fn release(&self) {
        for dir in self.data.iter().chain([&self.wal]) {
            drop(dir.lock.lock().take());
        }
    }

    fn instances(&self) -> MutexGuard<'_, Vec<(Arc<Directory>, Instance)>> {
        self.instances.lock()
    }

    /// Returns the cluster that the server has joined, if it has joined one.
    pub fn cluster(&self) -> Option<Uuid> {
        self.instances().first().and_then(|(_, wal)| wal.cluster)
    }

    /// Stores the cluster that the server joins; `Invalid` if it has joined another one. Does disk work.
    pub fn join_cluster(&self, cluster: Uuid) -> Result<()> {
        match self.cluster() {
            Some(known) if known == cluster => return Ok(()),
            Some(known) => {
                return Err(Error::invalid(format!(
                    "the master leads another cluster (its {cluster}, this server's {known}); check \
                     tserver_master_addrs, and that no empty master has taken the place of a lost one"
                )));
            }
            None => {}
        }
        for (dir, instance) in self.instances().iter_mut() {
            let joined = Instance { cluster: Some(cluster), ..instance.clone() };
            joined.write(dir)?;
            *instance = joined;
        }
        tracing::info!(%cluster, "the server has joined a cluster");
        Ok(())
    }

    /// Returns the format level of the directories.
    pub fn level(&self) -> FormatLevel {
        let first = self.instances().first().map(|(_, wal)| wal.recorded.level);
        first.unwrap_or(FormatLevel::FIRST)
    }

    /// Stores the format level if it is newer than that of the directories. Does disk work.
    pub fn raise_level(&self, level: FormatLevel) -> Result<()> {
        if level <= self.level() {
            return Ok(());
        }
        // Order: the WAL directory, which is the first, last: the level counts once all directories have it.
        for (dir, instance) in self.instances().iter_mut().rev() {
            let raised = Instance { recorded: RecordedLevel::of(level), ..instance.clone() };
            raised.write(dir)?;
            *instance = raised;
        }
        tracing::info!(%level, "the server writes the formats of a newer level");
        Ok(())
    }

    /// Checks the stored `instance` files, and writes damaged ones again. Does disk work.
    pub fn repair_instances(&self) -> Vec<InstanceDamage> {
        let mut found = Vec::new();
        for (dir, instance) in self.instances().iter() {
            if let Err(error) = instance.check_stored(dir) {
                let repaired = instance.write(dir).is_ok();
                found.push(InstanceDamage { file: format!("{}/{INSTANCE}", dir.path), error, repaired });
            }
        }
        found
    }
}

/// An `instance` file that was not as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceDamage {
    pub file: String,
    pub error: Error,
    /// True if it was written again.
    pub repaired: bool,
}

/// Paths of a server's directories.
#[derive(Debug, Clone, Copy)]
pub struct DirectoryPaths<'a> {
    pub wal: &'a str,
    /// At least one; may contain the WAL directory.
    pub data: &'a [String],
    /// Data directories that are given up, with all that was in them. One in `data` is left out if its device fails.
    pub lost: &'a [String],
}

/// Opens the directories and creates missing ones. A server whose directories are all new gets a new id; an empty
/// directory joins existing ones. Does disk work: call it through [`Env::run`].
pub fn open(
    env: &Env,
    kind: ServerKind,
    levels: LevelRange,
    paths: DirectoryPaths<'_>,
) -> Result<ServerDirs> {
    let data_dirs = paths.data;
    if data_dirs.is_empty() {
        return Err(Error::invalid("no data directory is configured; name at least one"));
    }
    let wal = Arc::new(open_directory(env, paths.wal)?);
    let data = open_data(env, &wal, paths)?;
    let instances = check::identify(env, (kind, levels), &wal, &data, paths.lost)?;
    // Order: before any log is opened.
    if let Some(log) = engine::wal::finish_cut(&wal.disk)? {
        tracing::warn!(%log, "finished the cut of a log that was interrupted");
    }
    let uuid = instances[0].1.uuid;
    Ok(ServerDirs { uuid, wal, data, instances: Mutex::new(instances) })
}

/// Opens the data directories, but not those that are given up and whose devices fail.
fn open_data(env: &Env, wal: &Arc<Directory>, paths: DirectoryPaths<'_>) -> Result<Vec<Arc<Directory>>> {
    let mut data: Vec<Arc<Directory>> = Vec::with_capacity(paths.data.len());
    for (i, dir) in paths.data.iter().enumerate() {
        if paths.data[..i].contains(dir) {
            return Err(Error::invalid(format!("the data directory {dir} is configured twice")));
        }
        if *dir == wal.path {
            data.push(wal.clone());
        } else if paths.lost.contains(dir) {
            data.extend(open_given_up(env, dir)?.map(Arc::new));
        } else {
            data.push(Arc::new(open_directory(env, dir)?));
        }
    }
    if data.is_empty() {
        let message = "every data directory is given up, and its device fails; name another one";
        return Err(Error::invalid(message));
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::codec;
    use engine::disk;
    use engine::disk::mem::DiskOpKind;
    use nyala_common::env::os::{OsEnv, OsOptions};
    use nyala_common::env::testing::MemDisks;

    /// Returns a function that opens directories by name below a temporary one; its errors omit the path and ids.
    #[allow(clippy::type_complexity, reason = "closures have no shorter name")]
    fn opener(
        env: &Env,
    ) -> (tempfile::TempDir, impl Fn(ServerKind, &str, &[&str]) -> Result<ServerDirs, String>) {
        let root = tempfile::tempdir().expect("a directory");
        let (env, at) = (env.clone(), root.path().to_str().expect("UTF-8").to_string());
        let open = move |kind, wal: &str, data: &[&str]| {
            let path = |name: &str| format!("{at}/{name}");
            let data: Vec<String> = data.iter().map(|name| path(name)).collect();
            let paths = DirectoryPaths { wal: &path(wal), data: &data, lost: &[] };
            open(&env, kind, LevelRange::PROGRAM, paths).map_err(|error| {
                let words = error.message.replace(&format!("{at}/"), "");
                let is_id = |word: &str| word.trim_end_matches([',', ';']).len() == 32;
                words
                    .split(' ')
                    .map(|word| if is_id(word) { "ID" } else { word })
                    .collect::<Vec<_>>()
                    .join(" ")
            })
        };
        (root, open)
    }

    #[tokio::test]
    async fn directories_keep_their_servers_id() {
        let env = OsEnv::new(&OsOptions::default()).expect("the real environment");
        let (_root, open) = opener(&env);
        let first = open(ServerKind::TabletServer, "wal", &["a", "wal"]).expect("new directories");
        let uuid = first.uuid;
        assert!(Arc::ptr_eq(&first.wal, &first.data[1]), "one directory for both is opened once");
        first.release();
        let again = open(ServerKind::TabletServer, "wal", &["a", "wal", "b"]).expect("one more joins");
        assert_eq!(again.uuid, uuid);
    }

    #[tokio::test]
    async fn a_server_joins_one_cluster() {
        let env = OsEnv::new(&OsOptions::default()).expect("the real environment");
        let (_root, open) = opener(&env);
        let open = || open(ServerKind::TabletServer, "wal", &["a"]).expect("its directories");
        let first = open();
        assert_eq!(first.cluster(), None);
        first.join_cluster(Uuid([1; 16])).expect("the first one");
        first.release();
        let again = open();
        assert_eq!(again.cluster(), Some(Uuid([1; 16])), "stored");
        assert_eq!(again.join_cluster(Uuid([1; 16])), Ok(()));
        let error = again.join_cluster(Uuid([2; 16])).expect_err("another one");
        assert!(error.message.starts_with("the master leads another cluster (its 0202"), "{error}");
        assert_eq!(again.cluster(), Some(Uuid([1; 16])));
    }

    fn levels(oldest: u32, newest: u32) -> LevelRange {
        LevelRange::new(oldest, newest).expect("in order")
    }

    /// The last release and this one, by the ranges of levels that they support.
    #[tokio::test]
    async fn a_raised_level_is_stored_and_the_last_release_is_refused() {
        let env = OsEnv::new(&OsOptions::default()).expect("the real environment");
        let root = tempfile::tempdir().expect("a directory");
        let path = |name: &str| root.path().join(name).to_str().expect("UTF-8").to_string();
        let (wal, data) = (path("wal"), [path("a"), path("b")]);
        let (last, this) = (LevelRange::FIRST, LevelRange::PROGRAM);
        let paths = DirectoryPaths { wal: &wal, data: &data, lost: &[] };
        let open = |levels| {
            let opened = open(&env, ServerKind::TabletServer, levels, paths);
            opened.map_err(|error| format!("{:?}: {error}", error.kind).replace(&path(""), ""))
        };
        for levels in [last, this, last, this] {
            let dirs = open(levels).expect("either release, until the level is raised");
            assert_eq!(dirs.level(), FormatLevel::FIRST);
            dirs.release();
        }
        let dirs = open(this).expect("its directories");
        dirs.raise_level(FormatLevel(2)).expect("stored");
        dirs.raise_level(FormatLevel(1)).expect("a level is never lowered");
        dirs.release();
        let again = open(this).expect("its directories");
        assert_eq!(again.level(), FormatLevel(2), "stored");
        again.release();
        // A crash between two files leaves one behind: the next start brings it up to date.
        let disk = env.disks.open(&data[0]).expect("a disk");
        let mut behind =
            Instance::decode(&disk::read_file(&*disk, INSTANCE).expect("a file")).expect("whole");
        behind.recorded = RecordedLevel::of(FormatLevel::FIRST);
        disk::replace_file(&*disk, INSTANCE, &behind.encode()).expect("written");
        open(this).expect("its directories").release();
        let stored = Instance::decode(&disk::read_file(&*disk, INSTANCE).expect("a file")).expect("whole");
        assert_eq!(stored.recorded, RecordedLevel::of(FormatLevel(2)));
        let refused = [last, levels(3, 4)]
            .map(|levels| open(levels).err().expect("refused").replace(PROGRAM, "PROGRAM"));
        expect_test::expect![[r#"
            Unsupported: the directory wal: written by PROGRAM: format level 2 is not supported by this program (PROGRAM supports level 1); use the program that wrote it, or a later one
            Unsupported: the directory wal: written by PROGRAM: format level 2 is not supported by this program (PROGRAM supports levels 3 to 4); upgrade through a release that supports both, and finalize that upgrade first
        "#]].assert_eq(&(refused.join("\n") + "\n"));
    }

    /// A server must not take an empty mount point for a new disk.
    #[tokio::test]
    async fn a_missing_data_directory_is_refused_and_may_be_given_up() {
        let env = OsEnv::new(&OsOptions::default()).expect("the real environment");
        let (root, open_dirs) = opener(&env);
        let tserver = ServerKind::TabletServer;
        let first = open_dirs(tserver, "wal", &["a", "b"]).expect("new directories");
        let uuid = first.uuid;
        first.release();
        let at = |name: &str| root.path().join(name);
        let refused = |data: &[&str]| open_dirs(tserver, "wal", data).err().expect("refused");
        let mut errors = vec![refused(&["a"])];
        env.disks.open(at("b").to_str().expect("UTF-8")).and_then(|b| b.remove(INSTANCE)).expect("unmounted");
        errors.push(refused(&["a", "b"]));
        errors.push(refused(&["a", "c"]));
        expect_test::expect![[r#"
            the data directory b of this server is not configured; name it, or give up what is in it with --fs_lost_data_dirs=b
            the data directory b is empty, but held a part of this server's tablets; mount its disk, or give up what was in it with --fs_lost_data_dirs=b
            the data directory b of this server is not configured; name it, or give up what is in it with --fs_lost_data_dirs=b
        "#]].assert_eq(&(errors.join("\n") + "\n"));
        let path = |name: &str| at(name).to_str().expect("UTF-8").to_string();
        let (wal, data, lost) = (path("wal"), [path("a"), path("b")], [path("b")]);
        let paths = DirectoryPaths { wal: &wal, data: &data, lost: &lost };
        open(&env, tserver, LevelRange::PROGRAM, paths).expect("given up").release();
        let after = open_dirs(tserver, "wal", &["a", "b"]).expect("the empty one has joined");
        assert_eq!(after.uuid, uuid);
    }

    /// A disk that fails while its server runs stays mounted, and its directory is still configured.
    #[tokio::test]
    async fn a_data_directory_whose_device_fails_may_be_given_up() {
        let mut env = OsEnv::new(&OsOptions::default()).expect("the real environment");
        let disks = MemDisks::default();
        env.disks = Arc::new(disks.clone());
        let (both, b) = (["a", "b"].map(str::to_string), ["b".to_string()]);
        let open = |data: &[String], lost: &[String]| {
            let paths = DirectoryPaths { wal: "wal", data, lost };
            open(&env, ServerKind::TabletServer, LevelRange::PROGRAM, paths)
        };
        let first = open(&both, &[]).expect("new directories");
        let uuid = first.uuid;
        disk::replace_file(&*first.data[1].disk, "rows", b"of a tablet").expect("written");
        first.release();
        disks.disk("b").fail_some(DiskOpKind::Read, 1000, libc::EIO);
        let failed = open(&both, &[]).err().expect("its device fails");
        assert!(is_device_failure(&failed), "{failed}");
        let only = open(&b, &b).err().expect("none is left").message;
        assert!(only.starts_with("every data directory is given up"), "{only}");
        // The second start finds it given up before.
        for _ in 0..2 {
            let opened = open(&both, &b).expect("it is given up");
            let paths: Vec<&str> = opened.data.iter().map(|dir| dir.path.as_str()).collect();
            assert_eq!((opened.uuid, paths), (uuid, vec!["a"]));
            opened.release();
        }
        disks.disk("b").end_faults();
        let old = open(&both, &b).err().expect("it is back").message;
        assert!(old.contains("the WAL directory wal does not list it"), "{old}");
    }

    /// The superblocks and votes in it are those of the time when it was given up.
    #[tokio::test]
    async fn a_directory_that_was_given_up_is_refused_until_it_is_wiped() {
        let env = OsEnv::new(&OsOptions::default()).expect("the real environment");
        let (root, open_dirs) = opener(&env);
        let tserver = ServerKind::TabletServer;
        let first = open_dirs(tserver, "wal", &["a", "b"]).expect("new directories");
        disk::replace_file(&*first.data[1].disk, "rows", b"of a tablet").expect("written");
        first.release();
        let path = |name: &str| root.path().join(name).to_str().expect("UTF-8").to_string();
        let (wal, data, lost) = (path("wal"), [path("a")], [path("b")]);
        let paths = DirectoryPaths { wal: &wal, data: &data, lost: &lost };
        open(&env, tserver, LevelRange::PROGRAM, paths).expect("given up").release();
        let refused = |data: &[&str]| open_dirs(tserver, "wal", data).err().expect("refused");
        let mut errors = vec![refused(&["a", "b"])];
        let [a, b, copy] = ["a", "b", "copy"].map(|name| env.disks.open(&path(name)).expect("a disk"));
        let instance = disk::read_file(&*a, INSTANCE).expect("a file");
        disk::replace_file(&*copy, INSTANCE, &instance).expect("written");
        errors.push(refused(&["a", "copy"]));
        expect_test::expect![[r#"
            the data directory b has files of this server, but the WAL directory wal does not list it; check fs_wal_dir, and if the data directory was given up before, wipe it first
            the data directory copy is a copy of a; name one of them
        "#]].assert_eq(&(errors.join("\n") + "\n"));
        b.remove("rows").expect("wiped");
        open_dirs(tserver, "wal", &["a", "b"]).expect("it joins again").release();
    }

    #[tokio::test]
    async fn a_data_directory_is_not_taken_for_the_wal_directory() {
        let env = OsEnv::new(&OsOptions::default()).expect("the real environment");
        let (_root, open) = opener(&env);
        let tserver = ServerKind::TabletServer;
        // Without fs_wal_dir the first data directory has the logs.
        open(tserver, "a", &["a", "b"]).expect("new directories").release();
        let other = open(tserver, "wal", &["c", "d"]).expect("new directories");
        disk::replace_file(&*other.data[1].disk, "rows", b"of a tablet").expect("written");
        other.release();
        let refused = |wal: &str, data: &[&str]| open(tserver, wal, data).err().expect("refused");
        let errors = [refused("b", &["b", "a"]), refused("c", &["wal", "d"]), refused("c", &["c", "d"])];
        expect_test::expect![[r#"
            the directory b is a data directory of this server, whose WAL directory is a; name the latter in --fs_wal_dir, or as the first of --fs_data_dirs
            the directory c is a data directory of this server, whose WAL directory is wal; name the latter in --fs_wal_dir, or as the first of --fs_data_dirs
            the data directory d has files of this server, but the WAL directory c does not list it; check fs_wal_dir, and if the data directory was given up before, wipe it first
        "#]].assert_eq(&(errors.join("\n") + "\n"));
        open(tserver, "a", &["b", "a"]).expect("only its logs have a place").release();
        open(tserver, "wal", &["d", "c"]).expect("no error has changed a directory").release();
    }

    #[tokio::test]
    async fn directories_may_change_places() {
        let env = OsEnv::new(&OsOptions::default()).expect("the real environment");
        let (root, open) = opener(&env);
        open(ServerKind::TabletServer, "wal", &["a", "b"]).expect("new directories").release();
        let swap = |from: &str, to: &str| {
            #[allow(clippy::disallowed_methods, reason = "what an operator does with mounts")]
            std::fs::rename(root.path().join(from), root.path().join(to)).expect("renamed");
        };
        for (from, to) in [("a", "x"), ("b", "a"), ("x", "b")] {
            swap(from, to);
        }
        open(ServerKind::TabletServer, "wal", &["a", "b"]).expect("each is known by its id");
    }

    #[tokio::test]
    async fn a_rotten_instance_is_restored_from_the_others() {
        let env = OsEnv::new(&OsOptions::default()).expect("the real environment");
        let (root, open) = opener(&env);
        let first = open(ServerKind::TabletServer, "wal", &["a", "b"]).expect("new directories");
        let uuid = first.uuid;
        first.release();
        for name in ["a", "wal"] {
            let path = root.path().join(name);
            let dir = env.disks.open(path.to_str().expect("UTF-8")).expect("a disk");
            disk::replace_file(&*dir, INSTANCE, b"scratched").expect("written");
            let again = open(ServerKind::TabletServer, "wal", &["a", "b"]).expect(name);
            assert_eq!(again.uuid, uuid);
            again.release();
            assert!(Instance::decode(&disk::read_file(&*dir, INSTANCE).expect("a file")).is_ok(), "{name}");
        }
    }

    /// A directory of the previous format has no list of the others.
    #[tokio::test]
    async fn an_older_server_does_not_take_an_empty_directory_beside_its_logs() {
        let env = OsEnv::new(&OsOptions::default()).expect("the real environment");
        let (root, open) = opener(&env);
        let path = root.path().join("wal");
        let wal = env.disks.open(path.to_str().expect("UTF-8")).expect("a disk");
        disk::replace_file(&*wal, INSTANCE, &first_format()).expect("written");
        wal.create_dir(&format!("wals/{}", Uuid([9; 16]))).expect("a log");
        let error = open(ServerKind::TabletServer, "wal", &["a"]).err().expect("refused");
        assert_eq!(
            error,
            "the data directory a is empty, but the WAL directory wal has logs of tablets that no data directory \
             has (1, the first 09090909090909090909090909090909); mount its disk, or give up what was in it with --fs_lost_data_dirs=a"
        );
    }

    /// Returns an `instance` of the first format.
    fn first_format() -> Vec<u8> {
        let mut payload = Vec::new();
        codec::put_bytes(&mut payload, Uuid([7; 16]).to_string().as_bytes());
        codec::put_bytes(&mut payload, b"tablet server");
        codec::seal(*b"NYIN", 1, &payload)
    }

    #[tokio::test]
    async fn directories_of_an_older_server_get_ids() {
        let env = OsEnv::new(&OsOptions::default()).expect("the real environment");
        let (root, open) = opener(&env);
        for name in ["wal", "a", "b"] {
            let path = root.path().join(name);
            let dir = env.disks.open(path.to_str().expect("UTF-8")).expect("a disk");
            disk::replace_file(&*dir, INSTANCE, &first_format()).expect("written");
            disk::replace_file(&*dir, "rows", b"of a tablet").expect("written");
        }
        for data in [["a", "b"], ["b", "a"]] {
            let opened = open(ServerKind::TabletServer, "wal", &data).expect("its directories");
            assert_eq!(opened.uuid, Uuid([7; 16]));
            opened.release();
        }
    }

    #[tokio::test]
    async fn wrong_directories_are_reported() {
        let env = OsEnv::new(&OsOptions::default()).expect("the real environment");
        let (root, open) = opener(&env);
        let tserver = ServerKind::TabletServer;
        for name in ["1", "2"] {
            open(tserver, &format!("wal{name}"), &[&format!("data{name}")])
                .expect("new directories")
                .release();
        }
        let write = |name: &str, bytes: &[u8]| {
            let disk = env.disks.open(root.path().join("odd").to_str().expect("UTF-8")).expect("a disk");
            disk::replace_file(&*disk, name, bytes).expect("written");
        };
        let mut errors = Vec::new();
        let mut refuse =
            |kind, wal: &str, data: &[&str]| errors.push(open(kind, wal, data).err().expect("refused"));
        refuse(tserver, "wal1", &[]);
        refuse(tserver, "wal1", &["data1", "data1"]);
        refuse(tserver, "wal1", &["data2"]);
        refuse(tserver, "new", &["data2"]);
        refuse(ServerKind::Master, "wal1", &["data1"]);
        write("letters.txt", b"dear");
        refuse(tserver, "odd", &["odd"]);
        write(INSTANCE, &codec::seal(*b"NYIN", 4, b""));
        refuse(tserver, "odd", &["odd"]);
        write(INSTANCE, b"scratched");
        refuse(tserver, "odd", &["odd"]);
        expect_test::expect![[r#"
            no data directory is configured; name at least one
            the data directory data1 is configured twice
            the directory data2 belongs to server ID but wal1 to server ID give each server its own directories
            the WAL directory new is empty, but data2 belongs to server ID whose WAL must be somewhere else
            the directory wal1 belongs to a tablet server, not to a master
            the directory odd contains "letters.txt" but no instance file; choose an empty directory or one that this server created
            the directory odd: "NYIN" record has format 4, newer than the newest this build reads (3); use the build that wrote it or a later one
            the directory odd: expected a "NYIN" record, but the bytes begin with "scra"; restore odd/instance from a backup, or give the server empty directories: its tablets are copied from other servers
        "#]].assert_eq(&(errors.join("\n") + "\n"));
    }
}
