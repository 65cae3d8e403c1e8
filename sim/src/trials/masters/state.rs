//! The state of all made-up servers and clients of a masters trial, and what they have found.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::ids::Uuid;
use engine::time::Instant;
use nyala_proto::kudu::security::SignedTokenPb;
use sim_plan::RandomStream;

use super::group::Group;
use super::keys::NewestKey;
use super::known_master::KnownMaster;
use super::outage::Outage;
use super::rights::Policy;
use super::server::DoubleServer;
use super::settings::{MASTERS, SERVERS, UNRESPONSIVE};
use super::tables::Tables;

/// Time after which a leader that can store again has new keys.
const WITHOUT_KEYS: Duration = Duration::from_secs(6);

/// A leadership of masters, as their replies tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leadership {
    pub(super) number: u64,
    pub(super) master: usize,
    pub(super) life: u64,
    /// Time of the first reply that reported it.
    pub(super) since: Instant,
}

/// A token that proves who a client is.
#[derive(Debug, Clone)]
pub(super) struct IssuedToken {
    pub(super) token: SignedTokenPb,
    /// Seconds since 1970 after which it is not valid.
    pub(super) expires: i64,
}

pub(super) struct State {
    pub(super) random: RandomStream,
    pub(super) policy: Option<Policy>,
    pub(super) masters: Vec<KnownMaster>,
    pub(super) servers: Vec<DoubleServer>,
    /// Identities whose server has lost its disks, and the times of that.
    pub(super) gone: BTreeMap<Uuid, Instant>,
    /// Servers in maintenance mode, since an acknowledged request; and those of which a request has no reply.
    pub(super) maintenance: BTreeMap<Uuid, Instant>,
    pub(super) unsure: BTreeSet<Uuid>,
    /// Time of the last request for a change of a mode.
    pub(super) maintenance_changed: Instant,
    pub(super) groups: BTreeMap<Uuid, Group>,
    pub(super) tables: Tables,
    /// The last leadership, unless its master has told or shown that it ended.
    pub(super) leadership: Option<Leadership>,
    leaderships: u64,
    /// The master that has led last.
    last_leader: Option<usize>,
    /// Time until which no majority of the masters was there.
    pub(super) minority_until: Instant,
    pub(super) cluster: Option<String>,
    pub(super) tokens: Vec<IssuedToken>,
    pub(super) newest_key: NewestKey,
    pub(super) authorities: Vec<Vec<u8>>,
    pub(super) outage: Option<Outage>,
    /// True once faults have ended, and once the last check has.
    pub(super) quiet: bool,
    pub(super) ended: bool,
    pub(super) found: Option<String>,
    pub(super) steps: Vec<String>,
}

impl State {
    pub(super) fn new(mut random: RandomStream, policy: Option<Policy>) -> State {
        let interval = |random: &mut RandomStream| Duration::from_millis(random.between(300, 1_000));
        let servers = (0..SERVERS).map(|number| DoubleServer::new(number, interval(&mut random))).collect();
        State {
            policy,
            masters: (0..MASTERS).map(|_| KnownMaster::default()).collect(),
            servers,
            gone: BTreeMap::new(),
            maintenance: BTreeMap::new(),
            unsure: BTreeSet::new(),
            maintenance_changed: Instant::default(),
            groups: BTreeMap::new(),
            tables: Tables::default(),
            leadership: None,
            leaderships: 0,
            last_leader: None,
            minority_until: Instant::default(),
            cluster: None,
            tokens: Vec::new(),
            newest_key: NewestKey::default(),
            authorities: Vec::new(),
            outage: None,
            quiet: false,
            ended: false,
            found: None,
            steps: Vec::new(),
            random,
        }
    }

    /// Returns true if there is nothing left to do.
    pub(super) fn is_over(&self) -> bool {
        self.ended || self.found.is_some()
    }

    /// Records that a master's reply says that it leads, or does not.
    pub(super) fn on_role(&mut self, master: usize, life: u64, leads: bool, now: Instant) {
        let same = self.leadership.is_some_and(|of| (of.master, of.life) == (master, life));
        if leads && !same {
            self.leaderships += 1;
            self.leadership = Some(Leadership { number: self.leaderships, master, life, since: now });
            let other = self.last_leader.replace(master).filter(|last| *last != master);
            let after = other.map(|other| format!(" after master {other}")).unwrap_or_default();
            self.note(format!("master {master} leads{after}"));
        } else if !leads && same {
            self.leadership = None;
        }
    }

    /// Returns true if a leading master may have no key that signs, as it could store none for too long.
    pub(super) fn may_lack_keys(&self, master: usize, now: Instant) -> bool {
        now < self.minority_until.max(self.masters[master].cut_off_until).after(WITHOUT_KEYS)
    }

    /// Returns true if no master was disturbed lately.
    pub(super) fn is_settled(&self, now: Instant) -> bool {
        self.masters.iter().all(|master| master.is_settled(now))
    }

    /// Returns the server with an identity, unless that is gone.
    pub(super) fn server(&self, id: Uuid) -> Option<&DoubleServer> {
        self.servers.iter().find(|server| server.id() == id)
    }

    /// Returns true if the server runs a replica of the tablet.
    pub(super) fn runs(&self, id: Uuid, tablet: &Uuid) -> bool {
        self.server(id).is_some_and(|server| server.runs(tablet))
    }

    /// Returns true if a master that is settled must take the server for alive and willing, as it did all along.
    pub(super) fn is_available(&self, server: &DoubleServer, now: Instant) -> bool {
        let steady = server.up && now.since(server.since.max(server.late_until)) > UNRESPONSIVE;
        let id = server.id();
        steady && now > server.late_until && !self.maintenance.contains_key(&id) && !self.unsure.contains(&id)
    }

    /// Returns true if no tablet loses its majority without the disks of a server.
    pub(super) fn can_lose(&self, server: usize) -> bool {
        let lost = &self.servers[server];
        let has = |id: Uuid, tablet: &Uuid| {
            id != lost.id() && self.server(id).is_some_and(|other| other.replicas.contains_key(tablet))
        };
        let survives = |(tablet, group): (&Uuid, &Group)| {
            let left = group.voters().filter(|voter| has(voter.id, tablet)).count();
            left * 2 > group.voters().count() || self.tables.gone.contains(&group.table)
        };
        let mut its = self.groups.iter().filter(|(tablet, _)| lost.replicas.contains_key(tablet));
        its.all(survives)
    }

    /// Records a change of a tablet at all its replicas.
    pub(super) fn mark(&mut self, tablet: &Uuid) {
        self.servers.iter_mut().for_each(|server| server.mark(tablet));
    }

    /// Adds what happens to the story.
    pub(super) fn note(&mut self, what: impl Into<String>) {
        self.steps.push(what.into());
    }

    /// Records what is wrong, unless something was before.
    pub(super) fn report(&mut self, what: impl Into<String>) {
        self.found.get_or_insert(what.into());
    }
}
