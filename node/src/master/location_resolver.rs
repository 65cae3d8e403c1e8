//! Locations of servers and clients, such as `/room2/rack7`.
//!
//! A tablet server's location is configured for its id. Otherwise a configured program returns it for the server's
//! host: it gets the host as its last argument and prints the location. Results are cached.
//!
//! A program that hangs takes a call's slot until it is killed, so that only some run at once: without that limit it
//! could keep the leading master from answering at all.

use engine::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::time::Duration;

use engine::error::{Error, Result};
use engine::ids::{PeerId, Uuid};
use tokio::sync::Semaphore;

use nyala_common::env::Env;

pub(super) struct LocationResolver {
    env: Env,
    /// Program and its first arguments; empty: hosts have no locations.
    command: Vec<String>,
    of_clients: bool,
    by_id: BTreeMap<PeerId, String>,
    by_host: Mutex<BTreeMap<String, String>>,
    servers: Semaphore,
    clients: Semaphore,
}

/// Most programs that run at once for servers, and for clients.
const PROGRAMS_MAX: usize = 4;
/// Longest wait for another program to end. A client asks for its location only once.
const PLACE_WAIT: Duration = Duration::from_secs(1);

impl LocationResolver {
    /// Creates a resolver. `command` is a program with arguments and `by_id` lists `ID=LOCATION`, both in the flags'
    /// form. Clients have locations only if `of_clients`.
    pub(super) fn new(
        env: &Env,
        command: &str,
        by_id: &[String],
        of_clients: bool,
    ) -> Result<LocationResolver> {
        let entry = |text: &String| {
            let wrong =
                || Error::invalid(format!("location_mapping_by_uuid: {text:?} is not UUID=/LOCATION"));
            let (id, location) = text.split_once('=').ok_or_else(wrong)?;
            let id = Uuid::parse(id.trim().as_bytes()).map_err(|_| wrong())?;
            check(location.trim()).map_err(|_| wrong())?;
            Ok((id, location.trim().to_string()))
        };
        Ok(LocationResolver {
            env: env.clone(),
            command: command.split_whitespace().map(str::to_string).collect(),
            of_clients,
            by_id: by_id.iter().map(entry).collect::<Result<_>>()?,
            by_host: Mutex::default(),
            servers: Semaphore::new(PROGRAMS_MAX),
            clients: Semaphore::new(PROGRAMS_MAX),
        })
    }

    /// Returns the location of a tablet server, if it has one. `NotReady` if the program fails.
    pub(super) async fn server(&self, id: PeerId, host: &str) -> Result<Option<String>> {
        match self.by_id.get(&id) {
            Some(location) => Ok(Some(location.clone())),
            None => self.host(host, &self.servers).await,
        }
    }

    /// Returns the location of a client. A failure is logged only: no client is rejected for it.
    pub(super) async fn client(&self, host: &str) -> Option<String> {
        if !self.of_clients {
            return None;
        }
        self.host(host, &self.clients)
            .await
            .inspect_err(|error| tracing::warn!(%error, host, "a client has no location"))
            .ok()?
    }

    async fn host(&self, host: &str, programs: &Semaphore) -> Result<Option<String>> {
        let Some((program, rest)) = self.command.split_first() else { return Ok(None) };
        if let Some(location) = self.known().get(host) {
            return Ok(Some(location.clone()));
        }
        let busy = || Error::not_ready(format!("location_mapping_cmd: {PROGRAMS_MAX} programs run; retry"));
        let place = self.env.timeout(PLACE_WAIT, programs.acquire()).await;
        let _running = place.and_then(std::result::Result::ok).ok_or_else(busy)?;
        // Another call may have asked for the same host meanwhile.
        if let Some(location) = self.known().get(host) {
            return Ok(Some(location.clone()));
        }
        let arguments: Vec<String> = rest.iter().cloned().chain([host.to_string()]).collect();
        let disks = self.env.disks.clone();
        let printed = self.env.run(|| disks.program_output(program, &arguments)).await;
        let printed = printed.map_err(|error| Error::not_ready(format!("location_mapping_cmd: {error}")))?;
        let location = String::from_utf8_lossy(&printed).trim().to_string();
        check(&location)?;
        self.known().insert(host.to_string(), location.clone());
        Ok(Some(location))
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.by_host.lock()
    }
}

/// Checks that a location is a path of names of letters, digits, `_`, `-` and `.`.
fn check(location: &str) -> Result<()> {
    let named = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
    };
    match location.strip_prefix('/') {
        Some(path) if path.split('/').all(named) => Ok(()),
        _ => Err(Error::not_ready(format!(
            "location_mapping_cmd: {location:?} is no location; it should print one like /room2/rack7"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyala_common::env::os::{OsEnv, OsOptions};

    fn locator(command: &str, by_id: &[&str]) -> Result<LocationResolver> {
        let env = OsEnv::new(&OsOptions::default()).expect("the real world");
        let by_id: Vec<String> = by_id.iter().map(|text| text.to_string()).collect();
        LocationResolver::new(&env, command, &by_id, true)
    }

    #[tokio::test]
    async fn ids_take_precedence_over_hosts() {
        let id = Uuid([1; 16]);
        let locator = locator("echo /rack/of", &[&format!("{id}=/a/b")]).unwrap();
        assert_eq!(locator.server(id, "h").await, Ok(Some("/a/b".to_string())));
        let error = locator.server(Uuid([2; 16]), "h").await.expect_err("it prints a space");
        assert!(error.message.contains("/rack/of h"), "{error}");
        assert_eq!(locator.client("h").await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_returns_the_locations_of_hosts() {
        let printing = locator("printf /rack-%s", &[]).unwrap();
        assert_eq!(printing.client("h1").await.as_deref(), Some("/rack-h1"));
        let hanging = printing.clients.try_acquire_many(PROGRAMS_MAX as u32).expect("no program runs");
        assert_eq!(printing.client("h2").await, None);
        assert_eq!(printing.server(Uuid([1; 16]), "h2").await, Ok(Some("/rack-h2".to_string())));
        drop(hanging);
        assert_eq!(locator("", &[]).unwrap().client("h1").await, None);
        let missing = locator("/no/such/program", &[]).unwrap();
        assert!(missing.server(Uuid([1; 16]), "h").await.is_err());
        assert!(locator("", &["x=/a"]).is_err() && locator("", &[&format!("{}=a", Uuid([1; 16]))]).is_err());
    }
}
