//! Audit of the catalog after the faults: every table that masters list can be opened and is whole, and the replicas of
//! its tablets are known.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::error::{Error, ErrorKind};
use engine::schema::partition::HashDimension;
use engine::time::Instant;
use nyala_client::location_cache::ReplicaLocation;
use nyala_client::replica_admin::{ServerInfo, TabletReplicas};
use nyala_client::{Client, ScanSpec, Table};
use nyala_common::env::Env;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::tablet::TabletStatePb;
use nyala_proto::kudu::tserver::list_tablets_response_pb::StatusAndSchemaPb;

use super::audit_lookups::ask_masters;
use super::audit_reports::{listed_traits, rebuild_source};
use super::audit_scans::scan_quiet_tablet;
use super::audit_servers::list_servers;
use super::catalog_audit::CatalogAudit;
use super::{Workload, until};
use crate::oracle::server_lists::{ToldReplica, ToldServer};
use crate::oracle::settled_tablets::ListedTablet;
use crate::oracle::table_settings;
use crate::oracle::told_sizes::ToldSizes;
use crate::oracle::unlisted_replicas::ListedReplicas;
use crate::oracle::whole_tables::TableLayout;

/// Pause before an audit: orders of masters may still be on their way.
const PAUSE: Duration = Duration::from_secs(2);

impl Workload {
    /// Reads the catalog. The result is that of [`Workload::last_audit`]. `scans`: whether to read rows as well. A scan
    /// would fail the replica whose damaged file it reads first.
    pub async fn audit_catalog(&self, env: &Env, scans: bool) {
        env.sleep(PAUSE).await;
        let client = self.connect(env).await;
        let audit = self.read_catalog(env, &client, scans).await;
        self.state().audit = Some(audit.map_err(|error| error.to_string()));
    }

    /// Returns the result of the last audit that has ended.
    pub fn last_audit(&self) -> Result<CatalogAudit, String> {
        self.state().audit.clone().unwrap_or_else(|| Err("the catalog was not read".to_string()))
    }

    async fn read_catalog(&self, env: &Env, client: &Client, scans: bool) -> Result<CatalogAudit, Error> {
        let within = self.plan().cluster.op_timeout;
        let deadline = env.now().mono.after(self.plan().quiet / 2);
        let tables = until(env, within, async || client.list_tables(None).await).await?;
        let mut audit = CatalogAudit { tables: tables.len(), ..CatalogAudit::default() };
        let mut opened = Vec::new();
        for table in tables {
            let read = until(env, within, async || match client.open_table(&table.name).await {
                Ok(table) => audit_of(&table).await.map(|audit| Some((table, audit))),
                // An order to drop it whose reply was lost.
                Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error.context(format_args!("table {}", table.name))),
            });
            let Some((table, of_table)) = read.await? else { continue };
            opened.push(table);
            audit.layouts.extend(of_table.layouts);
            audit.replicas.extend(of_table.replicas);
            audit.tablets.extend(of_table.tablets);
            audit.settings.extend(of_table.settings);
            audit.sizes.extend(of_table.sizes);
        }
        // Tables that are kept for recall have their replicas: one may be left whose recall was given up.
        let kept = until(env, within, async || client.deleted_tables().await).await?;
        audit.kept_tables = kept.len();
        for table in kept {
            let read = until(env, within, async || match client.replicas(&table.name).await {
                Err(error) if error.kind == ErrorKind::NotFound => Ok(Vec::new()),
                found => found,
            });
            audit.replicas.extend(read.await?.iter().map(hosts_of));
        }
        let servers = until(env, within, async || client.servers().await).await?;
        audit.servers = servers.iter().map(|server| (server.id.to_string(), told_server(server))).collect();
        self.ask_plainly(env, &opened, deadline, &mut audit).await;
        if scans {
            self.scan_quietly(env, &opened, deadline, &mut audit).await;
        }
        Ok(audit)
    }

    /// Adds what `nyala-client` does not ask for. `deadline`: end of the questions to masters and of scans.
    async fn ask_plainly(&self, env: &Env, tables: &[Table], deadline: Instant, audit: &mut CatalogAudit) {
        let mut client = self.audit_client(env);
        for table in tables {
            ask_masters(&mut client, table, deadline, audit).await;
        }
        list_servers(&mut client, deadline, audit).await;
        audit.groups = self.group_reports(env).await;
        for (host, told) in self.tablets_of_servers(env).await {
            let tablets = &told.status_and_schema;
            audit.traits.extend(tablets.iter().map(|tablet| listed_traits(&host, tablet)));
            let id = |tablet: &StatusAndSchemaPb| tablet.tablet_status.tablet_id.clone();
            let sources = tablets.iter().map(|tablet| ((host.clone(), id(tablet)), rebuild_source(tablet)));
            audit.sources.extend(sources);
            audit.clusters.insert(host.clone(), told.nyala_cluster_id.clone());
            let by_id = tablets.iter().map(|tablet| (id(tablet), told_replica(tablet)));
            audit.lists.insert(host, by_id.collect());
        }
    }

    async fn scan_quietly(&self, env: &Env, tables: &[Table], deadline: Instant, audit: &mut CatalogAudit) {
        let mut client = self.audit_client(env);
        for table in tables {
            audit.scans.extend(scan_quiet_tablet(&mut client, table, deadline).await);
        }
    }
}

fn told_server(server: &ServerInfo) -> ToldServer {
    ToldServer { host: server.host.clone(), silent_for: server.silent_for }
}

fn told_replica(listed: &StatusAndSchemaPb) -> ToldReplica {
    let status = &listed.tablet_status;
    ToldReplica {
        bytes: status.estimated_on_disk_size.and_then(|bytes| u64::try_from(bytes).ok()),
        runs: status.state() == TabletStatePb::Running,
        leads: listed.role == Some(Role::Leader as i32),
    }
}

/// Returns a tablet and the hosts of its replicas.
fn hosts_of(tablet: &TabletReplicas) -> (String, BTreeSet<String>) {
    let hosts = tablet.replicas.iter().filter_map(|replica| replica.address.split(':').next());
    (tablet.id.to_string(), hosts.map(str::to_string).collect())
}

/// Returns what the catalog has of a table.
async fn audit_of(table: &Table) -> Result<CatalogAudit, Error> {
    let tokens = table.scan_tokens(&ScanSpec::default()).await?;
    let partitions = table.partition_schema();
    let buckets = |hash: &[HashDimension]| hash.iter().map(|dimension| dimension.buckets).collect();
    let custom = partitions.custom.iter();
    let (mut replicas, mut known) = (ListedReplicas::new(), BTreeMap::new());
    let tablets = tokens.iter().filter_map(|token| {
        let tablet = token.tablet();
        let hosts = tablet.replicas.iter().filter_map(|replica| replica.address.split(':').next());
        // A tablet may have several tokens.
        let is_new = replicas.insert(tablet.id.clone(), hosts.map(str::to_string).collect()).is_none();
        known.insert(tablet.id.clone(), listed(&tablet.replicas));
        let range = tablet.partition.range();
        is_new.then(|| ((range.lower, range.upper), tablet.partition.hash_buckets.clone()))
    });
    let tablets = tablets.collect();
    let layout = TableLayout {
        table: table.name().to_string(),
        may_be_empty: !partitions.range_columns.is_empty(),
        hash: buckets(&partitions.hash),
        custom: custom.map(|own| ((own.lower.clone(), own.upper.clone()), buckets(&own.hash))).collect(),
        tablets,
    };
    let own =
        table_settings::wanted(table.extra_config(), table.owner(), table.comment(), table.num_replicas());
    let settings = known.keys().map(|tablet| (tablet.clone(), own.clone())).collect();
    let sizes = vec![told_sizes(table, known.keys().cloned().collect()).await?];
    let layouts = vec![layout];
    Ok(CatalogAudit { layouts, replicas, tablets: known, settings, sizes, ..CatalogAudit::default() })
}

/// Returns the sizes of a table that masters tell.
async fn told_sizes(table: &Table, tablets: Vec<String>) -> Result<ToldSizes, Error> {
    let name = table.name();
    let told = table.client().table_statistics(name).await?;
    Ok(ToldSizes { table: name.to_string(), tablets, bytes: told.disk_bytes, rows: told.live_rows })
}

fn listed(replicas: &[ReplicaLocation]) -> ListedTablet {
    ListedTablet {
        leader: replicas.iter().find(|replica| replica.leader).map(|replica| replica.server_id.clone()),
        voters: replicas.iter().map(|replica| replica.server_id.clone()).collect(),
    }
}
