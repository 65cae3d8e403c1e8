//! Audit of the catalog after the faults: every table that masters list can be opened and is whole, and the replicas of
//! its tablets are known.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::error::{Error, ErrorKind};
use engine::schema::partition::HashDimension;
use nyala_client::location_cache::ReplicaLocation;
use nyala_client::replica_admin::TabletReplicas;
use nyala_client::{Client, ScanSpec, Table};
use nyala_common::env::Env;
use nyala_proto::kudu::tablet::TabletStatusPb;
use nyala_proto::kudu::tserver::{ListTabletsRequestPb, ListTabletsResponsePb};

use super::admin::call;
use super::catalog_audit::CatalogAudit;
use super::{TSERVER_PORT, Workload, until};
use crate::oracle::settled_tablets::ListedTablet;
use crate::oracle::table_settings;
use crate::oracle::unlisted_replicas::ListedReplicas;
use crate::oracle::whole_tables::TableLayout;
use crate::wire::client::TSERVER;
use sim_plan::Host;

/// Pause before an audit: orders of masters may still be on their way.
const PAUSE: Duration = Duration::from_secs(2);

impl Workload {
    /// Reads the catalog. The result is that of [`Workload::last_audit`].
    pub async fn audit_catalog(&self, env: &Env) {
        env.sleep(PAUSE).await;
        let client = self.connect(env).await;
        let audit = self.read_catalog(env, &client).await;
        self.state().audit = Some(audit.map_err(|error| error.to_string()));
    }

    /// Returns the result of the last audit that has ended.
    pub fn last_audit(&self) -> Result<CatalogAudit, String> {
        self.state().audit.clone().unwrap_or_else(|| Err("the catalog was not read".to_string()))
    }

    async fn read_catalog(&self, env: &Env, client: &Client) -> Result<CatalogAudit, Error> {
        let within = self.plan().cluster.op_timeout;
        let tables = until(env, within, async || client.list_tables(None).await).await?;
        let mut audit = CatalogAudit::default();
        for table in tables {
            let read = until(env, within, async || match client.open_table(&table.name).await {
                Ok(table) => audit_of(&table).await.map(Some),
                // An order to drop it whose reply was lost.
                Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error.context(format_args!("table {}", table.name))),
            });
            let Some(of_table) = read.await? else { continue };
            audit.layouts.extend(of_table.layouts);
            audit.replicas.extend(of_table.replicas);
            audit.tablets.extend(of_table.tablets);
            audit.settings.extend(of_table.settings);
        }
        // Tables that are kept for recall have their replicas: one may be left whose recall was given up.
        for table in until(env, within, async || client.deleted_tables().await).await? {
            let read = until(env, within, async || match client.replicas(&table.name).await {
                Err(error) if error.kind == ErrorKind::NotFound => Ok(Vec::new()),
                found => found,
            });
            audit.replicas.extend(read.await?.iter().map(hosts_of));
        }
        audit.sizes = self.listed_sizes(env).await;
        Ok(audit)
    }

    /// Returns the sizes of tablets that servers list, by host and tablet.
    async fn listed_sizes(&self, env: &Env) -> BTreeMap<(String, String), u64> {
        let within = self.plan().cluster.rpc_timeout;
        let mut sizes = BTreeMap::new();
        for host in (0..self.plan().cluster.tservers).map(Host::Tserver) {
            let address = format!("{host}:{TSERVER_PORT}");
            let request = ListTabletsRequestPb { need_schema_info: Some(false), ..Default::default() };
            let listed: Result<ListTabletsResponsePb, Error> =
                call(env, &address, TSERVER, "ListTablets", &request, within).await;
            let Ok(listed) = listed else { continue };
            let of_tablet = listed.status_and_schema.into_iter().map(|tablet| tablet.tablet_status);
            let size = |tablet: TabletStatusPb| {
                let bytes = u64::try_from(tablet.estimated_on_disk_size?).ok()?;
                Some(((host.name(), tablet.tablet_id), bytes))
            };
            sizes.extend(of_tablet.filter_map(size));
        }
        sizes
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
    let layouts = vec![layout];
    Ok(CatalogAudit { layouts, replicas, tablets: known, settings, ..CatalogAudit::default() })
}

fn listed(replicas: &[ReplicaLocation]) -> ListedTablet {
    ListedTablet {
        leader: replicas.iter().find(|replica| replica.leader).map(|replica| replica.server_id.clone()),
        voters: replicas.iter().map(|replica| replica.server_id.clone()).collect(),
    }
}
