//! The check that a server's directories belong together, and none of them is missing.

use std::io;
use std::sync::Arc;

use engine::disk;
use engine::disk::overlay::OverlayDisk;
use engine::error::{Error, ErrorKind, Result};
use engine::format_level::LevelRange;
use engine::ids::Uuid;
use engine::replica::wal_dir;
use engine::tablet::superblock::Superblock;
use engine::wal::Wal;
use nyala_common::env::Env;

use super::directory::{Directory, INSTANCE, LOCK};
use super::instance::{Instance, ListedDirectory, RecordedLevel, ServerKind};

/// A directory's description of itself.
enum Found {
    /// The directory is empty.
    Fresh,
    Known(Instance),
    /// Its `instance` file cannot be read.
    Rotten(Error),
}

type Identified = Vec<(Arc<Directory>, Instance)>;

/// Fields of `instance` that all directories of a server share.
struct SharedIdentity {
    kind: ServerKind,
    /// `None` if all directories are new.
    uuid: Option<Uuid>,
    cluster: Option<Uuid>,
    /// The newest one: a crash may have left some directories behind it.
    recorded: RecordedLevel,
}

impl SharedIdentity {
    fn instance(&self, uuid: Uuid, dir: Option<Uuid>) -> Instance {
        let SharedIdentity { kind, cluster, recorded, .. } = self;
        let recorded = recorded.clone();
        Instance { uuid, kind: *kind, dir, cluster: *cluster, recorded, others: Vec::new() }
    }
}

/// Checks that the directories belong to one server, and writes what changed. Returns the instance of the WAL
/// directory, then those of the data directories beside it. Order: no list is written before the last check, so that a
/// start that is refused gives up no directory.
pub(super) fn identify(
    env: &Env,
    (kind, levels): (ServerKind, LevelRange),
    wal: &Arc<Directory>,
    data: &[Arc<Directory>],
    lost: &[String],
) -> Result<Identified> {
    let others: Vec<_> = data.iter().filter(|dir| dir.path != wal.path).cloned().collect();
    let others = others.as_slice();
    let read = |dir: &Arc<Directory>| read(dir, kind, levels);
    let own = read(wal)?;
    let found = others.iter().map(read).collect::<Result<Vec<_>>>()?;
    let recorded = instances(&own, &found).map(|instance| &instance.recorded).max_by_key(|it| it.level);
    let shared = SharedIdentity {
        kind,
        uuid: one_server(wal, &own, others, &found)?,
        cluster: instances(&own, &found).find_map(|instance| instance.cluster),
        recorded: recorded.cloned().unwrap_or_else(|| RecordedLevel::of(levels.oldest)),
    };
    check_lists_others(wal, &own, others, &found)?;
    let own = own_instance(env, &shared, wal, own, others, &found)?;
    let list = own.others.as_slice();
    let mut identified = Vec::with_capacity(others.len());
    for (dir, found) in others.iter().zip(&found) {
        let id = match found {
            Found::Known(instance) => instance.dir,
            Found::Rotten(error) => Some(listed_id(list, dir, error)?),
            Found::Fresh => None,
        };
        let id = id.unwrap_or_else(|| env.random_uuid());
        identified.push((dir.clone(), shared.instance(own.uuid, Some(id))));
    }
    check_none_given_up(wal, &own, others, &found)?;
    check_none_missing(list, others, &found, &identified, lost)?;
    if own.dir.is_none() {
        check_logs_known(wal, others, &found, lost)?;
    }
    if kind == ServerKind::Master {
        check_catalog_known(wal, data)?;
    }
    store(env, wal, own, &shared, identified, &found)
}

/// Writes the instances that changed. Order: the WAL directory's list last, so that a crash never leaves a directory in
/// it that does not know its id.
fn store(
    env: &Env,
    wal: &Arc<Directory>,
    own: Instance,
    shared: &SharedIdentity,
    mut identified: Identified,
    found: &[Found],
) -> Result<Identified> {
    for ((dir, instance), found) in identified.iter().zip(found) {
        if !matches!(found, Found::Known(known) if known == instance) {
            instance.write(dir)?;
        }
    }
    let listed = |(dir, instance): &(Arc<Directory>, Instance)| {
        Some(ListedDirectory { id: instance.dir?, path: dir.path.clone() })
    };
    let others = identified.iter().filter_map(listed).collect();
    let dir = own.dir.or_else(|| Some(env.random_uuid()));
    let complete = Instance { others, ..shared.instance(own.uuid, dir) };
    if complete != own {
        complete.write(wal)?;
    }
    identified.insert(0, (wal.clone(), complete));
    Ok(identified)
}

fn instances<'a>(own: &'a Found, found: &'a [Found]) -> impl Iterator<Item = &'a Instance> {
    [own].into_iter().chain(found).filter_map(|found| match found {
        Found::Known(instance) => Some(instance),
        Found::Fresh | Found::Rotten(_) => None,
    })
}

/// Returns the id of the server that all directories name; `None` if all are new.
fn one_server(
    wal: &Arc<Directory>,
    own: &Found,
    others: &[Arc<Directory>],
    found: &[Found],
) -> Result<Option<Uuid>> {
    let mut known: Option<(Uuid, &str)> = None;
    for (dir, found) in [(wal, own)].into_iter().chain(others.iter().zip(found)) {
        let Found::Known(instance) = found else { continue };
        match known {
            Some((uuid, path)) if instance.uuid != uuid => {
                return Err(Error::invalid(format!(
                    "the directory {} belongs to server {}, but {path} to server {uuid}; \
                     give each server its own directories",
                    dir.path, instance.uuid
                )));
            }
            _ => known = Some((instance.uuid, dir.path.as_str())),
        }
    }
    if let (Found::Fresh, Some((uuid, path))) = (own, known) {
        return Err(Error::invalid(format!(
            "the WAL directory {} is empty, but {path} belongs to server {uuid}, whose WAL must be somewhere else",
            wal.path
        )));
    }
    Ok(known.map(|(uuid, _)| uuid))
}

/// Fails if the WAL directory lists no data directories but another directory does, as only a WAL directory has a list.
fn check_lists_others(
    wal: &Directory,
    own: &Found,
    others: &[Arc<Directory>],
    found: &[Found],
) -> Result<()> {
    let lists = |found: &Found| matches!(found, Found::Known(instance) if !instance.others.is_empty());
    let listing = others.iter().zip(found).find(|(_, found)| lists(found));
    let Some((listing, _)) = listing.filter(|_| !lists(own)) else { return Ok(()) };
    Err(Error::invalid(format!(
        "the directory {} is a data directory of this server, whose WAL directory is {}; name the latter in \
         --fs_wal_dir, or as the first of --fs_data_dirs",
        wal.path, listing.path
    )))
}

/// Returns the WAL directory's instance. One that rotted is made again, if a data directory names the server.
fn own_instance(
    env: &Env,
    shared: &SharedIdentity,
    wal: &Arc<Directory>,
    own: Found,
    others: &[Arc<Directory>],
    found: &[Found],
) -> Result<Instance> {
    match own {
        Found::Known(instance) => Ok(instance),
        Found::Fresh => {
            let first = shared.instance(env.random_uuid(), None);
            // Order: the WAL directory first. After a crash in between, the empty data directories join it.
            first.write(wal)?;
            Ok(first)
        }
        Found::Rotten(error) => {
            let all_known = found.iter().all(|found| matches!(found, Found::Known(_)));
            let Some(uuid) = shared.uuid.filter(|_| all_known && !others.is_empty()) else {
                return Err(beyond_repair(wal, error));
            };
            tracing::warn!(dir = wal.path, %error, "the instance file is written again from the data directories");
            let listed = |(dir, found): (&Arc<Directory>, &Found)| match found {
                Found::Known(instance) => Some(ListedDirectory { id: instance.dir?, path: dir.path.clone() }),
                Found::Fresh | Found::Rotten(_) => None,
            };
            let others = others.iter().zip(found).filter_map(listed).collect();
            Ok(Instance { others, ..shared.instance(uuid, None) })
        }
    }
}

/// Returns the id of a directory whose instance file rotted, from the WAL directory's list.
fn listed_id(list: &[ListedDirectory], dir: &Arc<Directory>, error: &Error) -> Result<Uuid> {
    let Some(listed) = list.iter().find(|listed| listed.path == dir.path) else {
        return Err(beyond_repair(dir, error.clone()));
    };
    tracing::warn!(dir = dir.path, %error, "the instance file is written again from the WAL directory's list");
    Ok(listed.id)
}

fn beyond_repair(dir: &Directory, mut error: Error) -> Error {
    error.message.push_str(&format!(
        "; restore {0}/{INSTANCE} from a backup, or give the server empty directories: \
         its tablets are copied from other servers",
        dir.path
    ));
    error
}

/// Fails if a directory in `list` is not there, unless it is in `lost`.
fn check_none_missing(
    list: &[ListedDirectory],
    others: &[Arc<Directory>],
    found: &[Found],
    identified: &Identified,
    lost: &[String],
) -> Result<()> {
    for listed in list {
        let present = identified.iter().find(|(_, instance)| instance.dir == Some(listed.id));
        if let Some((dir, _)) = present {
            if dir.path != listed.path {
                tracing::warn!(dir = dir.path, before = listed.path, "a data directory has another path");
            }
            continue;
        }
        let path = &listed.path;
        if lost.contains(path) {
            tracing::warn!(dir = path, "a data directory is given up, with all that was in it");
            continue;
        }
        let empty =
            others.iter().zip(found).any(|(dir, found)| dir.path == *path && matches!(found, Found::Fresh));
        return Err(Error::invalid(match empty {
            true => format!(
                "the data directory {path} is empty, but held a part of this server's tablets; \
                 mount its disk, or give up what was in it with --fs_lost_data_dirs={path}"
            ),
            false => format!(
                "the data directory {path} of this server is not configured; \
                 name it, or give up what is in it with --fs_lost_data_dirs={path}"
            ),
        }));
    }
    Ok(())
}

/// Fails if a data directory with files is not in the WAL directory's list: it was given up, and its superblocks and
/// votes are those of that time. One that is there twice is a copy, whose superblocks grow old as well.
///
/// A directory without files joins. It may have its id already, from a start that crashed before the list was written.
fn check_none_given_up(
    wal: &Directory,
    own: &Instance,
    others: &[Arc<Directory>],
    found: &[Found],
) -> Result<()> {
    // A server of an older build has no list, and one that was made from the data directories has all of them.
    let Some(own_id) = own.dir else { return Ok(()) };
    let mut seen: Vec<(Uuid, &str)> = Vec::new();
    for (dir, found) in others.iter().zip(found) {
        let Found::Known(instance) = found else { continue };
        let id = instance.dir;
        if let Some((_, first)) = seen.iter().find(|(other, _)| Some(*other) == id) {
            return Err(Error::invalid(format!(
                "the data directory {} is a copy of {first}; name one of them",
                dir.path
            )));
        }
        seen.extend(id.map(|id| (id, dir.path.as_str())));
        // The WAL directory may have been copied from what stays a data directory.
        let listed = |id: Uuid| id == own_id || own.others.iter().any(|listed| listed.id == id);
        if id.is_some_and(listed) || first_file(dir)?.is_none() {
            continue;
        }
        return Err(Error::invalid(format!(
            "the data directory {} has files of this server, but the WAL directory {} does not list it; check \
             fs_wal_dir, and if the data directory was given up before, wipe it first",
            dir.path, wal.path
        )));
    }
    Ok(())
}

/// Fails if a data directory is empty although the WAL directory has logs of tablets that are in none. Only for a
/// server of an older build, whose WAL directory has no list.
fn check_logs_known(
    wal: &Directory,
    others: &[Arc<Directory>],
    found: &[Found],
    lost: &[String],
) -> Result<()> {
    let fresh =
        |(dir, found): &(&Arc<Directory>, &Found)| matches!(found, Found::Fresh) && !lost.contains(&dir.path);
    let Some((empty, _)) = others.iter().zip(found).find(fresh) else { return Ok(()) };
    let unknown = logs_without_superblock(wal, others.iter().map(|dir| &**dir).chain([wal]))?;
    let Some(first) = unknown.first() else { return Ok(()) };
    Err(Error::invalid(format!(
        "the data directory {0} is empty, but the WAL directory {1} has logs of tablets that no data directory has \
         ({2}, the first {first}); mount its disk, or give up what was in it with --fs_lost_data_dirs={0}",
        empty.path,
        wal.path,
        unknown.len()
    )))
}

/// Fails if a master has the log of its catalog and no superblock: the vote and the rows were in a data directory that
/// is not here. A master that took that for a new cluster would remove the log, and vote a second time.
fn check_catalog_known(wal: &Directory, data: &[Arc<Directory>]) -> Result<()> {
    for tablet in logs_without_superblock(wal, data.iter().map(|dir| &**dir))? {
        // An interrupted creation leaves a log without operations.
        if Wal::is_unused(&OverlayDisk::new(wal.disk.clone()), &wal_dir(tablet))? {
            continue;
        }
        let data: Vec<&str> = data.iter().map(|dir| dir.path.as_str()).collect();
        return Err(Error::invalid(format!(
            "the WAL directory {} has the log of this master's catalog, but no data directory ({}) has the catalog; \
             name the one that has it in --fs_data_dirs. If it is lost, remove this master from the others and start \
             it with empty directories, or rebuild the catalog of the only master (nyala debug master rebuild)",
            wal.path,
            data.join(", ")
        )));
    }
    Ok(())
}

/// Returns the tablets that have a log in the WAL directory and no superblock in any of `data`.
fn logs_without_superblock<'a>(
    wal: &Directory,
    data: impl Iterator<Item = &'a Directory>,
) -> Result<Vec<Uuid>> {
    let names = match wal.disk.list("wals") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names.map_err(|error| Error::io(format!("list {}/wals", wal.path), &error))?,
    };
    let mut known = Vec::new();
    for dir in data {
        // A view: a start that is refused leaves an empty directory empty.
        let listed = Superblock::list(&OverlayDisk::new(dir.disk.clone()));
        known.extend(listed.map_err(|error| error.context(format!("the directory {}", dir.path)))?);
    }
    let logs = names.iter().filter_map(|name| Uuid::parse(name.as_bytes()).ok());
    Ok(logs.filter(|tablet| !known.contains(tablet)).collect())
}

fn read(dir: &Directory, kind: ServerKind, levels: LevelRange) -> Result<Found> {
    let bytes = match disk::read_file(&*dir.disk, INSTANCE) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return check_is_empty(dir).map(|()| Found::Fresh);
        }
        Err(error) => return Err(Error::io(format!("read {}/{INSTANCE}", dir.path), &error)),
    };
    let instance = match Instance::decode(&bytes) {
        Ok(instance) => instance,
        Err(error) if error.kind == ErrorKind::Unsupported => {
            return Err(error.context(format!("the directory {}", dir.path)));
        }
        Err(error) => return Ok(Found::Rotten(error.context(format!("the directory {}", dir.path)))),
    };
    if instance.kind != kind {
        return Err(Error::invalid(format!(
            "the directory {} belongs to a {}, not to a {}",
            dir.path,
            instance.kind.name(),
            kind.name()
        )));
    }
    let supported = instance.recorded.check(levels);
    supported.map_err(|error| error.context(format!("the directory {}", dir.path)))?;
    Ok(Found::Known(instance))
}

/// Checks that a directory without `instance` is empty, so that foreign files are not mixed with the server's.
fn check_is_empty(dir: &Directory) -> Result<()> {
    match first_file(dir)? {
        None => Ok(()),
        Some(name) => Err(Error::invalid(format!(
            "the directory {} contains {name:?} but no {INSTANCE} file; \
             choose an empty directory or one that this server created",
            dir.path
        ))),
    }
}

/// Returns the first name in a directory besides its identity and its lock, if there is one.
fn first_file(dir: &Directory) -> Result<Option<String>> {
    let names = dir.disk.list("").map_err(|error| Error::io(format!("list {}", dir.path), &error))?;
    // A new file system has an empty directory of this name.
    let recovered =
        |name: &str| name == "lost+found" && dir.disk.list(name).is_ok_and(|names| names.is_empty());
    let identity = [INSTANCE.to_string(), format!("{INSTANCE}.tmp"), LOCK.to_string()];
    Ok(names.into_iter().find(|name| !identity.contains(name) && !recovered(name)))
}
