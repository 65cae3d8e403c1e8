//! Directories of one server: opened, locked, and checked to belong together.
//!
//! ```text
//! wal dir    instance  instance.lock  wals/<tablet>/…
//! data dir   instance  instance.lock  data/<tablet>/…  tablet-meta/<tablet>
//! ```
//!
//! `instance` names the server that owns the directory. A server does not start with a directory of another server, of
//! a newer build, or in use by another process; the error names the directory.

use std::io;
use std::sync::{Arc, Mutex};

use engine::codec::{self, ByteReader};
use engine::disk::{self, Disk};
use engine::error::{Error, ErrorKind, Result};
use engine::ids::Uuid;

use nyala_common::env::Env;

const MAGIC: [u8; 4] = *b"NYIN";
const FORMAT: u16 = 1;
const INSTANCE: &str = "instance";
const LOCK: &str = "instance.lock";

/// Kind of server that a directory belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerKind {
    Master,
    TabletServer,
}

impl ServerKind {
    pub fn name(self) -> &'static str {
        match self {
            ServerKind::Master => "master",
            ServerKind::TabletServer => "tablet server",
        }
    }

    /// Returns the id of the server's entity in metrics, as Kudu's.
    pub fn entity_id(self) -> &'static str {
        match self {
            ServerKind::Master => "kudu.master",
            ServerKind::TabletServer => "kudu.tabletserver",
        }
    }

    fn from_name(name: &str) -> Option<ServerKind> {
        [ServerKind::Master, ServerKind::TabletServer].into_iter().find(|kind| kind.name() == name)
    }
}

/// An open directory. It stays locked until [`ServerDirs::release`] or until it is dropped.
pub struct Directory {
    /// Path as in the configuration.
    pub path: String,
    pub disk: Arc<dyn Disk>,
    lock: Mutex<Option<Box<dyn Send + Sync>>>,
}

/// A server's directories and the identity stored in them.
pub struct ServerDirs {
    /// The server's permanent id.
    pub uuid: Uuid,
    pub wal: Arc<Directory>,
    /// At least one; may contain the WAL directory.
    pub data: Vec<Arc<Directory>>,
}

impl ServerDirs {
    /// Unlocks the directories for another server. The caller must not use them any more.
    pub fn release(&self) {
        for dir in self.data.iter().chain([&self.wal]) {
            drop(dir.lock.lock().expect("no task panics while holding it").take());
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instance {
    uuid: Uuid,
    kind: ServerKind,
}

/// Opens the directories and creates missing ones. A server whose directories are all new gets a new id; an empty
/// directory joins existing ones. Does disk work: call it through [`Env::run`].
pub fn open(env: &Env, kind: ServerKind, wal_dir: &str, data_dirs: &[String]) -> Result<ServerDirs> {
    if data_dirs.is_empty() {
        return Err(Error::invalid("no data directory is configured; name at least one"));
    }
    let wal = Arc::new(open_directory(env, wal_dir)?);
    let mut data: Vec<Arc<Directory>> = Vec::with_capacity(data_dirs.len());
    for (i, dir) in data_dirs.iter().enumerate() {
        if data_dirs[..i].contains(dir) {
            return Err(Error::invalid(format!("the data directory {dir} is configured twice")));
        }
        let same = *dir == wal.path;
        data.push(if same { wal.clone() } else { Arc::new(open_directory(env, dir)?) });
    }
    let uuid = identify(env, kind, &wal, &data)?;
    Ok(ServerDirs { uuid, wal, data })
}

fn open_directory(env: &Env, path: &str) -> Result<Directory> {
    let fail = |error: io::Error| Error::io(format!("open the directory {path}"), &error);
    let disk = env.disks.open(path).map_err(fail)?;
    let lock = disk.lock(LOCK).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Error::invalid(format!(
            "the directory {path} is in use by another process; stop that one or choose another directory"
        )),
        _ => Error::io(format!("lock the directory {path}"), &error),
    })?;
    Ok(Directory { path: path.to_string(), disk, lock: Mutex::new(Some(lock)) })
}

/// Returns the id that all directories agree on, and writes it to the new ones.
fn identify(env: &Env, kind: ServerKind, wal: &Directory, data: &[Arc<Directory>]) -> Result<Uuid> {
    let known = read_instance(wal, kind)?;
    let mut fresh = Vec::new();
    let mut found: Option<(Uuid, &str)> = known.map(|instance| (instance.uuid, wal.path.as_str()));
    if known.is_none() {
        fresh.push(wal);
    }
    for dir in data.iter().filter(|dir| dir.path != wal.path) {
        match (read_instance(dir, kind)?, found) {
            (None, _) => fresh.push(dir),
            (Some(instance), Some((uuid, path))) if instance.uuid != uuid => {
                return Err(Error::invalid(format!(
                    "the directory {} belongs to server {}, but {path} to server {uuid}; \
                     give each server its own directories",
                    dir.path, instance.uuid
                )));
            }
            (Some(instance), _) => found = Some((instance.uuid, &dir.path)),
        }
    }
    if let (None, Some((uuid, path))) = (known, found) {
        return Err(Error::invalid(format!(
            "the WAL directory {} is empty, but {path} belongs to server {uuid}, whose WAL must be somewhere else",
            wal.path
        )));
    }
    let uuid = found.map_or_else(|| env.random_uuid(), |(uuid, _)| uuid);
    // Order: the WAL directory first. After a crash in between, the empty data directories join it at the next start.
    for dir in fresh {
        write_instance(dir, Instance { uuid, kind })?;
    }
    Ok(uuid)
}

fn read_instance(dir: &Directory, kind: ServerKind) -> Result<Option<Instance>> {
    let at = |error: Error| error.context(format!("the directory {}", dir.path));
    let bytes = match disk::read_file(&*dir.disk, INSTANCE) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return check_is_empty(dir).map(|()| None),
        Err(error) => return Err(Error::io(format!("read {}/{INSTANCE}", dir.path), &error)),
    };
    let instance = decode(&bytes).map_err(at)?;
    if instance.kind != kind {
        return Err(Error::invalid(format!(
            "the directory {} belongs to a {}, not to a {}",
            dir.path,
            instance.kind.name(),
            kind.name()
        )));
    }
    Ok(Some(instance))
}

/// Checks that a directory without `instance` is empty, so that foreign files are not mixed with the server's.
fn check_is_empty(dir: &Directory) -> Result<()> {
    let names = dir.disk.list("").map_err(|error| Error::io(format!("list {}", dir.path), &error))?;
    let ours = |name: &String| *name == LOCK || *name == format!("{INSTANCE}.tmp");
    match names.iter().find(|name| !ours(name)) {
        None => Ok(()),
        Some(name) => Err(Error {
            kind: ErrorKind::Invalid,
            message: format!(
                "the directory {} contains {name:?} but no {INSTANCE} file; \
                 choose an empty directory or one that this server created",
                dir.path
            ),
            errno: None,
        }),
    }
}

fn decode(bytes: &[u8]) -> Result<Instance> {
    let (_, payload) = codec::unseal(MAGIC, FORMAT, bytes)?;
    let mut reader = ByteReader::new(payload);
    let uuid = Uuid::parse(reader.text()?.as_bytes())?;
    let name = reader.text()?;
    let kind =
        ServerKind::from_name(name).ok_or_else(|| Error::corrupt(format!("unknown server kind {name:?}")))?;
    reader.finish()?;
    Ok(Instance { uuid, kind })
}

fn write_instance(dir: &Directory, instance: Instance) -> Result<()> {
    let mut payload = Vec::new();
    codec::put_bytes(&mut payload, instance.uuid.to_string().as_bytes());
    codec::put_bytes(&mut payload, instance.kind.name().as_bytes());
    let bytes = codec::seal(MAGIC, FORMAT, &payload);
    let fail = |error| Error::io(format!("write {}/{INSTANCE}", dir.path), &error);
    disk::replace_file(&*dir.disk, INSTANCE, &bytes).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyala_common::env::os::{OsEnv, OsOptions};

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
            open(&env, kind, &path(wal), &data).map_err(|error| {
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
        write(INSTANCE, &codec::seal(MAGIC, FORMAT + 1, b""));
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
            the directory odd: "NYIN" record has format 2, newer than the newest this build reads (1); use the build that wrote it or a later one
            the directory odd: expected a "NYIN" record, but the bytes begin with "scra"
        "#]].assert_eq(&(errors.join("\n") + "\n"));
    }
}
