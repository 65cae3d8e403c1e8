//! Names of tablet servers on pages: their addresses, with links to their own pages.

use std::collections::BTreeMap;

use engine::catalog::{Catalog, TserverEntry};
use engine::ids::PeerId;
use engine::time::ClockReading;

use crate::server::pages::page::{PageCell, server_link};

/// Tablet servers by id, for cells that name one.
pub(super) struct ServerNames<'a>(pub BTreeMap<PeerId, TserverEntry<'a>>);

impl<'a> ServerNames<'a> {
    pub(super) fn of(catalog: &'a Catalog, now: ClockReading) -> ServerNames<'a> {
        ServerNames(catalog.servers(now.mono).map(|server| (server.id, server)).collect())
    }

    /// Returns true if the server has sent a heartbeat lately.
    pub(super) fn is_alive(&self, server: PeerId) -> bool {
        self.0.get(&server).is_some_and(|server| server.alive)
    }

    /// Returns a link to a page of a server, with its address as text.
    pub(super) fn link(&self, server: PeerId, path: &str, note: &str) -> PageCell {
        let Some(entry) = self.0.get(&server) else { return PageCell::Text(format!("{server}{note}")) };
        let rpc = entry.registration.rpc.first();
        let text = rpc.map_or_else(|| server.to_string(), ToString::to_string) + note;
        match entry.registration.http.first() {
            Some(http) => server_link(entry.registration.https_enabled, &http.host, http.port, path, text),
            None => PageCell::Text(text),
        }
    }
}
