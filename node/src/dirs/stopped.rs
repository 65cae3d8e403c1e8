//! Directories of a server that does not run, for tools: locked, and changed only if a tool was told to.

use std::sync::Arc;

use engine::error::{Error, ErrorKind, Result};
use engine::format_level::LevelRange;
use engine::ids::Uuid;
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
}

/// Opens and locks the directories of a stopped server. Without `data` they are those in the WAL directory's list.
/// `Invalid` if a directory is missing, in use, or of another server. Does disk work.
pub fn open_stopped(env: &Env, wal: &str, data: &[String]) -> Result<StoppedServer> {
    let mut damaged = Vec::new();
    let own = read_instance(env, wal, &mut damaged)?;
    let listed: Vec<String> =
        own.iter().flat_map(|instance| &instance.others).map(|other| other.path.clone()).collect();
    let data = match (data.is_empty(), listed.is_empty()) {
        (false, _) => data.to_vec(),
        (true, false) => listed,
        (true, true) => vec![wal.to_string()],
    };
    let wal = Arc::new(open_directory(env, wal)?);
    let (mut known, mut dirs) = (own, Vec::new());
    for path in &data {
        if *path == wal.path {
            dirs.push(wal.clone());
            continue;
        }
        if let Some(found) = read_instance(env, path, &mut damaged)? {
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
    Ok(StoppedServer { uuid, kind, cluster, wal, data: dirs, damaged })
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
