//! Web pages of a master: the catalog, the servers and the health of the cluster.
//!
//! ```text
//!   page ──▶ does this master lead? ── no ──▶ a page with a link to the leader
//!                    └── yes ──▶ one read in the catalog's loop ──▶ WebPage
//! ```

mod cluster_health;
mod rest;
mod server_names;
mod servers;
mod tables;

use std::sync::Arc;

use engine::catalog::{Catalog, TableEntry};
use engine::time::ClockReading;

use super::history_calls;
use super::leadership::CatalogUnavailable;
use super::service::MasterService;
use crate::server::ServerContext;
use crate::server::pages::options::PageOptions;
use crate::server::pages::page::{PageBlock, Severity, WebPage, fact, server_link};
use crate::server::pages::registry::{
    OverviewPart, PageBody, PageError, PageErrorKind, PageRegistry, PageResult, required_id,
};
use nyala_common::env::BoxFuture;
use nyala_common::security::tls::certificate_pem;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::master::ListMastersResponsePb;

type PageFn = fn(Arc<MasterService>, PageOptions) -> BoxFuture<'static, PageResult>;

/// Registers the pages of a master.
pub(super) fn register(common: &ServerContext, service: &Arc<MasterService>) {
    let pages: [(&'static str, Option<&'static str>, PageFn); 15] = [
        ("/check", Some("Check"), |service, _| Box::pin(check(service))),
        ("/tables", Some("Tables"), |service, _| Box::pin(all_tables(service))),
        ("/tablet-servers", Some("Tablet servers"), |service, _| Box::pin(tablet_servers(service))),
        ("/masters", Some("Masters"), |service, _| Box::pin(masters(service))),
        ("/history-holds", Some("History holds"), |service, _| Box::pin(history_holds(service))),
        ("/table", None, |service, options| Box::pin(one_table(service, options))),
        ("/dump-entities", None, |service, _| Box::pin(dump_entities(service))),
        ("/api/v1/tables", None, |service, options| Box::pin(rest_tables(service, options))),
        ("/api/v1/tables/<id>", None, |service, options| Box::pin(rest_table(service, options))),
        ("/api/v1/leader", None, |service, _| Box::pin(rest_leader(service))),
        ("/api/v1/spec", None, |_, _| Box::pin(std::future::ready(Ok(PageBody::Json(rest::spec()))))),
        ("/ipki-ca-cert", None, |service, _| Box::pin(authority_pem(service))),
        ("/ipki-ca-cert-pem", None, |service, _| Box::pin(authority_pem(service))),
        ("/ipki-ca-cert-der", None, |service, _| Box::pin(authority_der(service))),
        ("/prometheus-sd", None, |service, _| Box::pin(scrape_targets(service))),
    ];
    for (path, name, page) in pages {
        add(&common.pages, service, path, name, page);
    }
    let of = service.clone();
    common.pages.register_overview(Arc::new(move || Box::pin(overview(of.clone()))));
}

fn add(
    pages: &PageRegistry,
    service: &Arc<MasterService>,
    path: &'static str,
    name: Option<&'static str>,
    page: PageFn,
) {
    let service = service.clone();
    pages.register(path, name, Arc::new(move |options| page(service.clone(), options)));
}

/// Reads the catalog for a page. If another master leads, the page links to it.
async fn with_catalog(
    service: Arc<MasterService>,
    title: &str,
    path: &str,
    look: impl FnOnce(&Catalog, ClockReading) -> PageResult + Send + 'static,
) -> PageResult {
    match service.leadership.catalog() {
        Err(CatalogUnavailable::NotLeader) => Ok(page_of_follower(&service, title, path).await.into()),
        _ => read_catalog(service, look).await,
    }
}

/// Reads the catalog, which only the leader has.
async fn read_catalog(
    service: Arc<MasterService>,
    look: impl FnOnce(&Catalog, ClockReading) -> PageResult + Send + 'static,
) -> PageResult {
    let not_ready = |message: String| Err(PageError::new(PageErrorKind::NotReady, message));
    match service.leadership.catalog() {
        Ok(catalog) => match catalog.read(look).await {
            Ok(page) => page,
            Err(error) => not_ready(format!("the catalog is not there: {error}")),
        },
        Err(CatalogUnavailable::NotLeader) => {
            not_ready("Master is not the leader; /api/v1/leader names the leader".to_owned())
        }
        Err(_) => not_ready("the catalog is being loaded; try again".to_owned()),
    }
}

/// Returns the page that links to the leader's.
async fn page_of_follower(service: &MasterService, title: &str, path: &str) -> WebPage {
    let page = WebPage::new(title).verdict(Severity::Neutral, "another master leads; only it has this page");
    let Ok(masters) = service.list_masters().await else { return page };
    let leader = masters.masters.iter().find(|master| master.role == Some(Role::Leader as i32));
    let address = leader.and_then(|leader| {
        let registration = leader.registration.as_ref()?;
        let http = registration.http_addresses.first()?;
        let port = u16::try_from(http.port).ok()?;
        let text = format!("{}:{port}", http.host);
        Some(server_link(registration.https_enabled(), &http.host, port, path, text))
    });
    let known = address.unwrap_or_else(|| "not known".into());
    page.with(PageBlock::facts("leader", "Leader", vec![fact("address", "the leader's page", known)]))
}

async fn check(service: Arc<MasterService>) -> PageResult {
    with_catalog(service, "Check", "/check", |catalog, now| Ok(cluster_health::page(catalog, now).into()))
        .await
}

async fn all_tables(service: Arc<MasterService>) -> PageResult {
    with_catalog(service, "Tables", "/tables", |catalog, now| Ok(tables::list(catalog, now).into())).await
}

async fn one_table(service: Arc<MasterService>, options: PageOptions) -> PageResult {
    let id = required_id(&options)?;
    let path = format!("/table?id={id}");
    with_catalog(service, "Table", &path, move |catalog, now| {
        let page = tables::one(catalog, now, id);
        page.map(PageBody::from)
            .ok_or_else(|| PageError::new(PageErrorKind::NotFound, format!("there is no table {id}")))
    })
    .await
}

async fn tablet_servers(service: Arc<MasterService>) -> PageResult {
    with_catalog(service, "Tablet servers", "/tablet-servers", |catalog, now| {
        Ok(servers::tablet_servers(catalog, now).into())
    })
    .await
}

async fn history_holds(service: Arc<MasterService>) -> PageResult {
    let holds = service.history_holds.clone();
    with_catalog(service, "History holds", "/history-holds", move |catalog, now| {
        Ok(history_calls::page(catalog, now, &holds.all(now.mono), holds.limits()).into())
    })
    .await
}

async fn list_masters(service: &MasterService) -> Result<ListMastersResponsePb, PageError> {
    service.list_masters().await.map_err(|error| {
        let message = error.status.message.unwrap_or_default();
        PageError::new(PageErrorKind::NotReady, format!("the masters are not known yet: {message}"))
    })
}

async fn masters(service: Arc<MasterService>) -> PageResult {
    Ok(servers::masters(&list_masters(&service).await?).into())
}

async fn dump_entities(service: Arc<MasterService>) -> PageResult {
    let masters = list_masters(&service).await?;
    let catalog = service.leadership.catalog();
    let read = match catalog {
        Ok(catalog) => catalog.read(move |catalog, now| servers::entities(catalog, now, &masters)).await,
        Err(why) => Err(super::leadership::absent(why)),
    };
    Ok(PageBody::Json(read.unwrap_or_else(|error| serde_json::json!({ "error": error.to_string() }))))
}

async fn scrape_targets(service: Arc<MasterService>) -> PageResult {
    // A follower asks the masters too: if it leads next, it knows the addresses of those that are down by then.
    let masters = service.known_masters.complete(list_masters(&service).await?);
    match service.leadership.catalog() {
        Err(CatalogUnavailable::NotLeader) => Ok(PageBody::Json(serde_json::json!([]))),
        // An error, by which Prometheus keeps its targets, if the leadership ends meanwhile.
        _ => {
            read_catalog(service, move |catalog, now| {
                Ok(PageBody::Json(servers::scrape_targets(catalog, now, &masters)))
            })
            .await
        }
    }
}

/// Returns which tables a request sees: those that the policy lets its user see, if a ticket names one.
fn table_sight(service: &MasterService, user: Option<String>) -> Box<dyn Fn(&TableEntry<'_>) -> bool + Send> {
    let authorizer = service.authorizer.clone();
    let user = user.filter(|user| !service.identity.access().is_privileged(user));
    Box::new(move |table: &TableEntry<'_>| user.as_ref().is_none_or(|user| authorizer.lists(user, table)))
}

async fn rest_tables(service: Arc<MasterService>, options: PageOptions) -> PageResult {
    let sees = table_sight(&service, options.user);
    read_catalog(service, move |catalog, _| Ok(PageBody::Json(rest::tables(catalog, sees)))).await
}

async fn rest_table(service: Arc<MasterService>, options: PageOptions) -> PageResult {
    let id = required_id(&options)?;
    let sees = table_sight(&service, options.user);
    read_catalog(service, move |catalog, _| {
        let table = rest::table(catalog, id, sees).map(PageBody::Json);
        table.ok_or_else(|| PageError::new(PageErrorKind::NotFound, format!("there is no table {id}")))
    })
    .await
}

async fn rest_leader(service: Arc<MasterService>) -> PageResult {
    let masters = list_masters(&service).await?;
    let missing = || PageError::new(PageErrorKind::NotFound, "no master with a web port is known to lead");
    rest::leader(&masters).map(PageBody::Json).ok_or_else(missing)
}

/// Returns the certificate of the CA by which clients verify this cluster's servers.
fn authority(service: &MasterService) -> Result<Vec<u8>, PageError> {
    let missing = "this master has no CA: TLS is off, or the master has not yet read the catalog";
    // The last one is the newest.
    let trusted = service.identity.trusted().pop();
    trusted.ok_or_else(|| PageError::new(PageErrorKind::NotReady, missing))
}

async fn authority_pem(service: Arc<MasterService>) -> PageResult {
    Ok(PageBody::File("application/x-pem-file", certificate_pem(&authority(&service)?).into_bytes()))
}

async fn authority_der(service: Arc<MasterService>) -> PageResult {
    Ok(PageBody::File("application/pkix-cert", authority(&service)?))
}

/// Returns the master's part of the overview: the cluster, as far as this master knows it.
async fn overview(service: Arc<MasterService>) -> OverviewPart {
    let Ok(catalog) = service.leadership.catalog() else {
        let page = page_of_follower(&service, "", "/").await;
        return OverviewPart { findings: Vec::new(), blocks: page.blocks };
    };
    let read = catalog.read(cluster_health::overview).await;
    read.unwrap_or_default()
}
