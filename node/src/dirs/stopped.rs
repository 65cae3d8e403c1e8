//! Directories of a server that does not run, for tools: locked, and changed only if a tool was told to.

use std::sync::Arc;

use engine::disk::overlay::OverlayDisk;
use engine::error::{Error, ErrorKind, Result};
use engine::format_level::LevelRange;
use engine::ids::Uuid;
use engine::tablet::superblock::Superblock;
use nyala_common::env::Env;

use super::directory::{Directory, INSTANCE, open_directory};
use super::instance::{Instance, ServerKind};

/// The directories of a stopped server.
pub struct StoppedServer {
    pub uuid: Uuid,
    pub kind: ServerKind,
    pub cluster: Option<Uuid>,
    pub wal: Arc<Directory>,
    /// At least one; may contain the WAL directory.
    pub data: Vec<Arc<Directory>>,
    /// Directories whose `instance` file cannot be read, with the reason.
    pub damaged: Vec<String>,
    /// Reason why the server may have tablets in directories that are not in `data`, if it may.
    pub incomplete: Option<String>,
}

/// Opens and locks the directories of a stopped server. Without `data` they are those in the WAL directory's list, and
/// the WAL directory if it has superblocks. `Invalid` if a directory is missing, in use, or of another server. Does
/// disk work.
pub fn open_stopped(env: &Env, wal: &str, data: &[String]) -> Result<StoppedServer> {
    let mut damaged = Vec::new();
    let own = read_instance(env, wal, &mut damaged)?;
    let listed: Vec<String> =
        own.iter().flat_map(|instance| &instance.others).map(|other| other.path.clone()).collect();
    let wal = Arc::new(open_directory(env, wal)?);
    // The list does not say if the WAL directory is a data directory as well.
    let in_wal = !Superblock::list(&OverlayDisk::new(wal.disk.clone()))?.is_empty();
    let data = match data.is_empty() {
        false => data.to_vec(),
        true if listed.is_empty() => vec![wal.path.clone()],
        true => in_wal.then(|| wal.path.clone()).into_iter().chain(listed).collect(),
    };
    let mut missing = Missing::of(own.as_ref(), &wal, in_wal);
    let (mut known, mut dirs) = (own, Vec::new());
    for path in &data {
        if *path == wal.path {
            missing.found(path, None);
            dirs.push(wal.clone());
            continue;
        }
        let instance = read_instance(env, path, &mut damaged)?;
        missing.found(path, instance.as_ref().and_then(|instance| instance.dir));
        if let Some(found) = instance {
            let known = known.get_or_insert_with(|| found.clone());
            if known.uuid != found.uuid {
                return Err(Error::invalid(format!(
                    "the directory {path} belongs to server {}, but {} to server {}",
                    found.uuid, wal.path, known.uuid
                )));
            }
        }
        dirs.push(Arc::new(open_directory(env, path)?));
    }
    let Some(Instance { uuid, kind, cluster, .. }) = known else {
        return Err(Error::invalid(format!(
            "no directory of this server has a readable {INSTANCE} file ({})",
            damaged.join("; ")
        )));
    };
    let incomplete = missing.reason(&wal);
    Ok(StoppedServer { uuid, kind, cluster, wal, data: dirs, damaged, incomplete })
}

/// Data directories that a server has and a command line may not name.
enum Missing {
    /// The WAL directory's list cannot be read, or is none.
    Unknown,
    /// Their ids, if they have one, and paths.
    Known(Vec<(Option<Uuid>, String)>),
}

impl Missing {
    /// Returns all data directories: those of the list, and the WAL directory if it has superblocks (`in_wal`).
    fn of(own: Option<&Instance>, wal: &Directory, in_wal: bool) -> Missing {
        // Before its first start with this format, a server has no list.
        let Some(own) = own.filter(|own| own.dir.is_some()) else { return Missing::Unknown };
        let listed = own.others.iter().map(|listed| (Some(listed.id), listed.path.clone()));
        Missing::Known(listed.chain(in_wal.then(|| (None, wal.path.clone()))).collect())
    }

    /// Removes a directory that was named. Its id counts, if it can be read: mounts may have changed places.
    fn found(&mut self, path: &str, id: Option<Uuid>) {
        if let Missing::Known(missing) = self {
            missing.retain(|(known, at)| match id {
                Some(id) => *known != Some(id),
                None => at != path,
            });
        }
    }

    fn reason(&self, wal: &Directory) -> Option<String> {
        match self {
            Missing::Unknown => Some(format!(
                "the WAL directory {} has no readable list of the data directories; start the server, which writes it",
                wal.path
            )),
            Missing::Known(missing) => missing.first().map(|(_, path)| {
                format!("the data directory {path} of this server is not named; name all in --fs-data-dirs, or none")
            }),
        }
    }
}

/// Reads a directory's instance without creating anything; `None` and an entry in `damaged` if it is damaged.
fn read_instance(env: &Env, path: &str, damaged: &mut Vec<String>) -> Result<Option<Instance>> {
    let file = format!("{path}/{INSTANCE}");
    let bytes = env.disks.read_file(&file).map_err(|error| {
        Error::invalid(format!("the directory {path} is none of a server's: cannot read {file}: {error}"))
    })?;
    let refused = |error: Error| error.context(format!("the directory {path}"));
    match Instance::decode(&bytes) {
        Ok(instance) => {
            instance.recorded.check(LevelRange::PROGRAM).map_err(refused)?;
            Ok(Some(instance))
        }
        Err(error) if error.kind == ErrorKind::Unsupported => Err(refused(error)),
        Err(error) => {
            damaged.push(format!("{file}: {error}"));
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use nyala_common::env::os::{OsEnv, OsOptions};

    use super::super::{DirectoryPaths, open};
    use super::*;

    #[tokio::test]
    async fn directories_that_are_not_named_are_found() {
        let env = OsEnv::new(&OsOptions::default()).expect("the real environment");
        let root = tempfile::tempdir().expect("a directory");
        let path = |name: &str| root.path().join(name).to_str().expect("UTF-8").to_string();
        let (wal, data) = (path("a"), ["a", "b", "c"].map(path));
        let paths = DirectoryPaths { wal: &wal, data: &data, lost: &[] };
        let dirs = open(&env, ServerKind::TabletServer, LevelRange::PROGRAM, paths).expect("new directories");
        Superblock::unreadable(Uuid([7; 16])).store(&*dirs.wal.disk).expect("stored");
        dirs.release();
        let found = |named: &[&str]| {
            let named: Vec<String> = named.iter().copied().map(path).collect();
            let server = open_stopped(&env, &wal, &named).expect("its directories");
            let reason = server.incomplete.unwrap_or("complete".to_string());
            format!("{}: {}\n", server.data.len(), reason.replace(&path(""), ""))
        };
        let cases: [&[&str]; 5] = [&[], &["a", "b", "c"], &["c", "a"], &["b", "c"], &["a"]];
        expect_test::expect![[r#"
            3: complete
            3: complete
            2: the data directory b of this server is not named; name all in --fs-data-dirs, or none
            2: the data directory a of this server is not named; name all in --fs-data-dirs, or none
            1: the data directory b of this server is not named; name all in --fs-data-dirs, or none
        "#]]
        .assert_eq(&cases.map(found).concat());
    }
}
