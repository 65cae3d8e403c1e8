//! Kerberos tickets of the web port's clients: `Authorization: Negotiate` (RFC 4559), one message each way.
//!
//! A client whose mechanism needs several messages is refused: Kerberos needs one.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engine::error::{Error, Result};

use crate::server::flags::Flags;
use nyala_common::env::Env;
use nyala_common::env::kerberos::Kerberos;

/// Request for a ticket.
pub(super) const CHALLENGE: &str = "Negotiate";

/// Keys of the web port, by which it reads tickets.
pub(super) struct WebTickets {
    library: Arc<dyn Kerberos>,
    keytab: String,
}

impl fmt::Debug for WebTickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebTickets").field("keytab", &self.keytab).finish_non_exhaustive()
    }
}

impl WebTickets {
    /// Reads the settings; checks the keytab.
    pub(super) fn from_flags(env: &Env, flags: &Flags) -> Result<Option<WebTickets>> {
        let keytab = flags.text("spnego_keytab_file");
        match (flags.bool("webserver_require_spnego"), keytab.is_empty()) {
            (false, true) => return Ok(None),
            (false, false) => {
                return Err(Error::invalid(
                    "spnego_keytab_file: of no use without webserver_require_spnego; set both or none",
                ));
            }
            (true, true) => {
                return Err(Error::invalid(
                    "webserver_require_spnego: the key of HTTP/HOST is missing (no spnego_keytab_file); name a keytab \
                     that has it",
                ));
            }
            (true, false) => {}
        }
        let Some(library) = env.net.kerberos() else {
            return Err(Error::invalid(
                "webserver_require_spnego: this program was built without Kerberos; leave it out, or build with the \
                 cargo feature kerberos",
            ));
        };
        let world_readable = flags.bool("allow_world_readable_credentials");
        let checked = library.check_keytab(&keytab, "", world_readable);
        checked.map_err(|why| Error::invalid(format!("spnego_keytab_file: {why}")))?;
        Ok(Some(WebTickets { library, keytab }))
    }

    /// Returns true if a header `Authorization` has a ticket for this server. May wait for files.
    pub(super) fn accepts(&self, header: &str) -> bool {
        match self.principal(header) {
            Ok(principal) => {
                tracing::debug!(principal = %principal.escape_debug(), "web request with a ticket");
                true
            }
            Err(why) => {
                tracing::debug!(why = %why.escape_debug(), "web request refused");
                false
            }
        }
    }

    /// Returns the principal of the ticket.
    fn principal(&self, header: &str) -> std::result::Result<String, String> {
        let (scheme, token) = header.split_once(' ').ok_or("the header has one word")?;
        if !scheme.eq_ignore_ascii_case(CHALLENGE) {
            return Err("the header has no ticket".to_string());
        }
        let token = STANDARD.decode(token.trim()).map_err(|_| "the ticket is not base64")?;
        if token.is_empty() {
            return Err("the ticket is empty".to_string());
        }
        let mut context = self.library.accept_web(&self.keytab)?;
        match context.step(&token)?.complete {
            true => context.client(),
            false => Err("the mechanism needs more messages than a request has".to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyala_common::env::kerberos_double::KerberosDouble;

    #[test]
    fn a_request_needs_a_whole_ticket_in_the_right_form() {
        let tickets = WebTickets { library: Arc::new(KerberosDouble::default()), keytab: String::new() };
        let ticket = STANDARD.encode("ticket ann@R for HTTP/h");
        assert_eq!(tickets.principal(&format!("negotiate {ticket}")), Ok("ann@R".to_string()));
        for header in [
            "Negotiate".to_string(),
            "Negotiate ".to_string(),
            "Negotiate !".to_string(),
            format!("Basic {ticket}"),
            format!("Negotiate {}", STANDARD.encode("forged")),
        ] {
            assert!(!tickets.accepts(&header), "{header:?}");
        }
    }
}
