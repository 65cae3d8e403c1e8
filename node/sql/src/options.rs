//! Options of the program `nyala-sql`, and the documents that are made from them.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use nyala_sql::Format;

/// Runs SQL statements against a cluster: those of -c, of -f, or of standard input. In a terminal it is a shell
#[derive(Parser)]
#[command(name = "nyala-sql", version)]
pub(super) struct Options {
    #[command(subcommand)]
    pub(super) mode: Option<Mode>,
    /// Addresses of the masters
    #[arg(
        long,
        global = true,
        visible_alias = "masters",
        value_name = "HOST:PORT,...",
        default_value = "127.0.0.1:7051"
    )]
    pub(super) master: String,
    /// Directory of a cluster that runs as long as this program; created if missing
    #[arg(long, global = true, value_name = "DIR", conflicts_with = "master")]
    pub(super) dir: Option<String>,
    /// Program nyala that runs the cluster of --dir; by default the one beside this program, or on PATH
    #[arg(long, global = true, value_name = "PROGRAM", env = "NYALA")]
    pub(super) nyala: Option<String>,
    /// Statements to run; may be given several times
    #[arg(short, long, value_name = "SQL")]
    pub(super) command: Vec<String>,
    /// File of statements to run
    #[arg(short, long, value_name = "FILE", conflicts_with = "command")]
    pub(super) file: Option<String>,
    /// Format of results
    #[arg(long, value_enum, default_value = "table")]
    pub(super) format: Format,
    /// Continues scans at another replica when a server is lost; slower
    #[arg(long, global = true)]
    pub(super) fault_tolerant: bool,
    /// Reads rows and aggregates them here, where tablet servers would
    #[arg(long, global = true)]
    pub(super) no_server_aggregation: bool,
    /// PEM file of the CAs that servers' certificates must chain to
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) ca_cert: Option<String>,
    /// File of a JSON Web Token that proves your name; needs --ca-cert
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) jwt_file: Option<String>,
    /// Refuses servers without TLS, and encrypts within this machine, too
    #[arg(long, global = true)]
    pub(super) require_encryption: bool,
}

#[derive(Subcommand)]
pub(super) enum Mode {
    /// Serves the Postgres protocol and Arrow Flight SQL to psql, drivers and tools until Ctrl-C or SIGTERM
    Serve(ServeOptions),
    #[command(flatten)]
    Document(Document),
}

/// A document of the program, made from its options.
#[derive(Subcommand)]
pub(super) enum Document {
    /// Writes the manual pages into a directory
    Man {
        /// Directory of the pages; created if missing
        #[arg(value_name = "DIR")]
        pages: PathBuf,
    },
    /// Prints the completion script of a shell
    Completions { shell: Shell },
}

impl Document {
    /// Makes the document. Fails with a message.
    pub(super) fn write(&self) -> Result<(), String> {
        let mut program = Options::command();
        match self {
            Document::Man { pages } => {
                let written =
                    std::fs::create_dir_all(pages).and_then(|()| clap_mangen::generate_to(program, pages));
                written.map_err(|error| format!("man: write to {}: {error}", pages.display()))
            }
            Document::Completions { shell } => {
                let name = program.get_name().to_string();
                // To memory first: a failed write would be a panic.
                let mut script = Vec::new();
                clap_complete::generate(*shell, &mut program, name, &mut script);
                nyala_sql::to_stdout(&script).map_err(|error| format!("write standard output: {error}"))
            }
        }
    }
}

#[derive(Args)]
pub(super) struct ServeOptions {
    /// Address of the Postgres protocol; port 0 selects a free port. Other addresses than loopback need passwords or
    /// --jwt-clients, and TLS
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:5432")]
    pub(super) listen: SocketAddr,
    /// Address of Arrow Flight SQL, for ADBC and JDBC; by default there is none. The same rules as for --listen
    #[arg(long, value_name = "IP:PORT")]
    pub(super) flight_listen: Option<SocketAddr>,
    /// File of lines USER:PASSWORD, or USER:VERIFIER as Postgres stores it; only you may read it
    #[arg(long, value_name = "FILE")]
    pub(super) password_file: Option<String>,
    /// Clients give a JSON Web Token as the password, and have the rights of its subject in the cluster; needs
    /// --ca-cert
    #[arg(long, conflicts_with = "password_file")]
    pub(super) jwt_clients: bool,
    /// All clients have your rights in the cluster, although it authenticates users
    #[arg(long, conflicts_with = "jwt_clients")]
    pub(super) one_user: bool,
    /// PEM file of the certificate chain for TLS, which all clients must use then
    #[arg(long, value_name = "FILE", requires = "tls_key_file")]
    pub(super) tls_cert_file: Option<String>,
    /// PEM file (PKCS#8) of the key of --tls-cert-file; only you may read it
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub(super) tls_key_file: Option<String>,
    /// Clients may leave TLS out, also from other hosts: their secrets and data cross the network unprotected
    #[arg(long)]
    pub(super) allow_plaintext: bool,
    /// Largest number of clients at a time
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(super) connections_max: usize,
    /// Largest size of a client's message in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    pub(super) message_bytes_max: usize,
    /// Largest memory of the statements of all clients in bytes; a statement that needs more fails. By default 40
    /// percent of the memory of this machine or of its control group
    #[arg(long, value_name = "BYTES")]
    pub(super) memory_bytes_max: Option<usize>,
    /// Longest time of a statement in seconds; 0 for no limit. A client of the Postgres protocol may SET
    /// statement_timeout
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(super) statement_timeout: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_pages_describe_the_options_of_the_shell_and_of_serve() {
        Options::command().debug_assert();
        let dir = tempfile::tempdir().expect("a temporary directory");
        let pages = dir.path().join("man1");
        let options = Options::try_parse_from(["nyala-sql", "man", pages.to_str().expect("UTF-8")]);
        let Ok(Options { mode: Some(Mode::Document(document)), .. }) = options else { panic!("a document") };
        document.write().expect("pages");
        let page = |name: &str| std::fs::read_to_string(pages.join(name)).expect(name);
        assert!(page("nyala-sql.1").contains("Format of results"));
        assert!(page("nyala-sql-serve.1").contains("Address of Arrow Flight SQL"));
    }
}
