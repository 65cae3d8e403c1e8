//! Web pages of a tablet server: its tablets, scans, operations and maintenance.

mod activity;
mod one_tablet;
mod tablet_list;

use std::sync::{Arc, Weak};

use engine::ids::TabletId;

use super::server::TabletServer;
use crate::hosting::tablet_entry::{EntryState, TabletEntry};
use crate::server::pages::options::PageOptions;
use crate::server::pages::registry::{OverviewPart, PageError, PageErrorKind, PageResult, required_id};
use nyala_common::env::BoxFuture;

type PageFn = fn(Arc<TabletServer>, PageOptions) -> BoxFuture<'static, PageResult>;

/// Registers the pages of a tablet server.
pub(super) fn register(server: &Arc<TabletServer>) {
    let pages: [(&'static str, Option<&'static str>, PageFn); 8] = [
        ("/tablets", Some("Tablets"), |server, _| Box::pin(tablets(server))),
        ("/scans", Some("Scans"), |server, _| Box::pin(scans(server))),
        ("/transactions", Some("Operations"), |server, _| Box::pin(operations(server))),
        ("/maintenance-manager", Some("Maintenance"), |server, _| Box::pin(maintenance(server))),
        ("/tablet", None, |server, options| Box::pin(tablet(server, options))),
        ("/tablet-rowsetlayout-svg", None, |server, options| Box::pin(layout(server, options))),
        ("/tablet-consensus-status", None, |server, options| Box::pin(consensus(server, options))),
        ("/log-anchors", None, |server, options| Box::pin(anchors(server, options))),
    ];
    for (path, name, page) in pages {
        let weak = Arc::downgrade(server);
        let source = move |options| of_server(&weak, page, options);
        server.common.pages.register(path, name, Arc::new(source));
    }
    let weak = Arc::downgrade(server);
    server.common.pages.register_overview(Arc::new(move || {
        let server = weak.upgrade();
        Box::pin(async move { server.map(|server| overview(&server)).unwrap_or_default() })
    }));
    let weak = Arc::downgrade(server);
    server
        .common
        .startup
        .count_tablets(move || weak.upgrade().map_or((0, 0), |server| count_opened(&server)));
}

async fn tablets(server: Arc<TabletServer>) -> PageResult {
    Ok(tablet_list::page(&server).into())
}

async fn scans(server: Arc<TabletServer>) -> PageResult {
    Ok(activity::scans(&server).into())
}

async fn operations(server: Arc<TabletServer>) -> PageResult {
    Ok(activity::operations(&server).await.into())
}

async fn maintenance(server: Arc<TabletServer>) -> PageResult {
    Ok(activity::maintenance(&server).into())
}

async fn tablet(server: Arc<TabletServer>, options: PageOptions) -> PageResult {
    let entry = find(&server, &options)?;
    Ok(one_tablet::page(&server, &entry).await.into())
}

async fn layout(server: Arc<TabletServer>, options: PageOptions) -> PageResult {
    let tablet = opened(&server, &options)?;
    Ok(one_tablet::layout(&tablet).into())
}

async fn consensus(server: Arc<TabletServer>, options: PageOptions) -> PageResult {
    opened(&server, &options)?;
    let entry = find(&server, &options)?;
    Ok(one_tablet::consensus(&server, &entry).await.into())
}

async fn anchors(server: Arc<TabletServer>, options: PageOptions) -> PageResult {
    let tablet = opened(&server, &options)?;
    Ok(one_tablet::anchors(&tablet).into())
}

fn of_server(
    weak: &Weak<TabletServer>,
    page: PageFn,
    options: PageOptions,
) -> BoxFuture<'static, PageResult> {
    match weak.upgrade() {
        Some(server) => page(server, options),
        None => {
            let error = PageError::new(PageErrorKind::NotReady, "the server is stopping");
            Box::pin(async move { Err(error) })
        }
    }
}

/// Returns the numbers of tablets that are opened or failed, and of all.
fn count_opened(server: &TabletServer) -> (usize, usize) {
    let all = server.tablets.all();
    let opening = all.iter().filter(|entry| matches!(entry.state(), EntryState::Bootstrapping)).count();
    (all.len() - opening, all.len())
}

fn find(server: &TabletServer, options: &PageOptions) -> Result<Arc<TabletEntry>, PageError> {
    let id: TabletId = required_id(options)?;
    server
        .tablets
        .get(id)
        .ok_or_else(|| PageError::new(PageErrorKind::NotFound, format!("tablet {id} is not on this server")))
}

/// Returns the tablet if it is open.
fn opened(server: &TabletServer, options: &PageOptions) -> Result<Arc<engine::tablet::Tablet>, PageError> {
    let entry = find(server, options)?;
    entry.tablet().ok_or_else(|| {
        let state = entry.state_pb().as_str_name();
        PageError::new(PageErrorKind::NotReady, format!("tablet {} is not open ({state})", entry.id))
    })
}

fn overview(server: &TabletServer) -> OverviewPart {
    OverviewPart {
        findings: Vec::new(),
        blocks: vec![tablet_list::counts(server), activity::directories(server)],
    }
}
