//! The file `instance`: the identity of a directory.
//!
//! ```text
//!   v1   server id, server kind
//!   v2   server id, server kind, directory id or "", cluster id or "", count, count × (directory id, path)
//!   v3   format level, program that raised the level, then as v2
//! ```
//!
//! Only the WAL directory's file lists the data directories. v3 is written from format level 2 on; later levels keep
//! its first two fields, so that an older program names the newer one.

use engine::codec::{self, ByteReader};
use engine::disk;
use engine::error::{Error, Result};
use engine::format_level::{FormatLevel, LevelRange, StoredFormat};
use engine::ids::Uuid;

use super::directory::{Directory, INSTANCE};

const MAGIC: [u8; 4] = *b"NYIN";
const NEWEST: u16 = StoredFormat::Instance.newest_version();
/// First version that records the format level.
const WITH_LEVEL: u16 = 3;
/// This program, as it is recorded with a level.
pub const PROGRAM: &str = concat!("nyala ", env!("CARGO_PKG_VERSION"));

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

/// A data directory in the WAL directory's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListedDirectory {
    pub id: Uuid,
    /// Path at the last start.
    pub path: String,
}

/// Format level of a directory, and the program that raised it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordedLevel {
    pub level: FormatLevel,
    /// Empty at levels whose `instance` does not record it.
    pub program: String,
}

impl RecordedLevel {
    /// Returns the record of this program that a directory has `level`.
    pub(super) fn of(level: FormatLevel) -> RecordedLevel {
        let recorded = StoredFormat::Instance.version_at(level) >= WITH_LEVEL;
        RecordedLevel { level, program: if recorded { PROGRAM } else { "" }.to_string() }
    }

    /// Returns `Unsupported`, which names both programs, unless a program of this range reads the directory.
    pub(super) fn check(&self, levels: LevelRange) -> Result<()> {
        let RecordedLevel { program, .. } = self;
        let by = if program.is_empty() { String::new() } else { format!("written by {program}") };
        levels
            .check(self.level, PROGRAM)
            .map_err(|error| if by.is_empty() { error } else { error.context(by) })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Instance {
    pub uuid: Uuid,
    pub kind: ServerKind,
    /// Id of the directory; absent in the first format, and until the data directories know theirs.
    pub dir: Option<Uuid>,
    pub cluster: Option<Uuid>,
    pub recorded: RecordedLevel,
    pub others: Vec<ListedDirectory>,
}

impl Instance {
    pub(super) fn decode(bytes: &[u8]) -> Result<Instance> {
        let (format, payload) = codec::unseal(MAGIC, NEWEST, bytes)?;
        let mut reader = ByteReader::new(payload);
        let mut recorded = RecordedLevel::of(FormatLevel::FIRST);
        if format >= WITH_LEVEL {
            let (level, program) = (FormatLevel(reader.u16()?), reader.text()?.to_string());
            StoredFormat::Instance.check_version(format, level)?;
            recorded = RecordedLevel { level, program };
        }
        let uuid = Uuid::parse(reader.text()?.as_bytes())?;
        let name = reader.text()?;
        let kind = ServerKind::from_name(name)
            .ok_or_else(|| Error::corrupt(format!("unknown server kind {name:?}")))?;
        let mut instance = Instance { uuid, kind, dir: None, cluster: None, recorded, others: Vec::new() };
        if format > 1 {
            instance.dir = optional_id(reader.text()?)?;
            instance.cluster = optional_id(reader.text()?)?;
            for _ in 0..reader.u32()? {
                let id = Uuid::parse(reader.text()?.as_bytes())?;
                instance.others.push(ListedDirectory { id, path: reader.text()?.to_string() });
            }
        }
        reader.finish()?;
        Ok(instance)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        let format = StoredFormat::Instance.version_at(self.recorded.level);
        if format >= WITH_LEVEL {
            payload.extend_from_slice(&self.recorded.level.0.to_le_bytes());
            codec::put_bytes(&mut payload, self.recorded.program.as_bytes());
        }
        let text = |id: Option<Uuid>| id.map_or(String::new(), |id| id.to_string());
        codec::put_bytes(&mut payload, self.uuid.to_string().as_bytes());
        codec::put_bytes(&mut payload, self.kind.name().as_bytes());
        codec::put_bytes(&mut payload, text(self.dir).as_bytes());
        codec::put_bytes(&mut payload, text(self.cluster).as_bytes());
        payload.extend_from_slice(&(self.others.len() as u32).to_le_bytes());
        for other in &self.others {
            codec::put_bytes(&mut payload, other.id.to_string().as_bytes());
            codec::put_bytes(&mut payload, other.path.as_bytes());
        }
        codec::seal(MAGIC, format, &payload)
    }

    /// Returns an error unless the file in `dir` has the bytes of this instance.
    pub(super) fn check_stored(&self, dir: &Directory) -> Result<()> {
        let bytes = disk::read_file(&*dir.disk, INSTANCE).map_err(|error| Error::io("read it", &error))?;
        match Instance::decode(&bytes)? == *self {
            true => Ok(()),
            false => Err(Error::corrupt("it is not the one that this server wrote")),
        }
    }

    /// Stores it in `dir`, durably.
    pub(super) fn write(&self, dir: &Directory) -> Result<()> {
        let fail = |error| Error::io(format!("write {}/{INSTANCE}", dir.path), &error);
        disk::replace_file(&*dir.disk, INSTANCE, &self.encode()).map_err(fail)
    }
}

fn optional_id(text: &str) -> Result<Option<Uuid>> {
    if text.is_empty() { Ok(None) } else { Uuid::parse(text.as_bytes()).map(Some) }
}
