//! A cluster in a directory: the programs `nyala-sql` and `nyala` as users run them.
//!
//! The program `nyala` is the one beside `nyala-sql`. Cargo builds it for the tests of the workspace; for those of this
//! crate alone, `cargo build -p node` does.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// Attempts to open a directory whose servers are about to end.
const ATTEMPTS_MAX: usize = 600;

/// Returns the command `nyala-sql --dir …`.
fn nyala_sql(dir: &Path, arguments: &[&str]) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_nyala-sql"));
    let servers = program.with_file_name("nyala");
    assert!(servers.exists(), "{} is missing: cargo build -p node", servers.display());
    let mut command = Command::new(program);
    command.args(["--dir", dir.to_str().expect("UTF-8")]).args(arguments);
    // The environment may name another program.
    command.env_remove("NYALA").stdin(Stdio::null());
    command
}

fn run(dir: &Path, arguments: &[&str]) -> Output {
    nyala_sql(dir, arguments).output().expect("the program runs")
}

fn printed(output: &Output) -> &str {
    assert!(output.status.success(), "{}", error(output));
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A process that holds its cluster until it is told to end.
struct Holder {
    child: Child,
    /// Held open: the program prints when it ends.
    _stdout: BufReader<ChildStdout>,
}

impl Holder {
    /// Starts the program and waits until its servers and its own port are ready.
    fn start(dir: &Path) -> Holder {
        let mut command = nyala_sql(dir, &["serve", "--listen", "127.0.0.1:0"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("output");
        assert!(line.starts_with("serving the Postgres protocol at 127.0.0.1:"), "{line}");
        Holder { child, _stdout: stdout }
    }

    /// Ends the program in order.
    fn terminate(mut self) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().expect("the program kill");
        assert!(sent.success());
        assert!(self.child.wait().expect("an end").success());
    }
}

/// Kills the program, also when the test fails; it may have ended already.
impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_servers_of_a_directory_live_as_long_as_the_program() {
    let parent = tempfile::tempdir().expect("a temporary directory");
    let dir = parent.path().join("data");
    let create = "CREATE TABLE t (k INT PRIMARY KEY, v VARCHAR) PARTITION BY HASH (k) PARTITIONS 2";
    let insert = "INSERT INTO t VALUES (1, 'one'), (2, 'two')";
    let select = ["--format", "csv", "-c", "SELECT k, v FROM t ORDER BY k"];
    let rows = "k,v\n1,one\n2,two\n";
    let written = run(&dir, &["--format", "csv", "-c", create, "-c", insert]);
    assert_eq!(printed(&written), "count\n2\n");
    // The servers have ended with the program: others can use the directory at once, and the rows are there.
    assert_eq!(printed(&run(&dir, &select)), rows);
    // A statement that fails ends them, too.
    let failed = run(&dir, &["-c", "SELECT * FROM nothere"]);
    assert_eq!(failed.status.code(), Some(1), "{}", error(&failed));
    assert!(error(&failed).starts_with("nyala-sql: "), "{}", error(&failed));

    let holder = Holder::start(&dir);
    let second = run(&dir, &select);
    assert_eq!(second.status.code(), Some(1));
    assert_eq!(error(&second), refusal(&dir));
    holder.terminate();
    assert_eq!(printed(&run(&dir, &select)), rows);

    // A killed program cannot wait for its servers, but they end.
    drop(Holder::start(&dir));
    let mut attempts = (0..ATTEMPTS_MAX).map(|_| run(&dir, &select));
    let opened = attempts.find(|attempt| error(attempt) != refusal(&dir)).expect("the servers end");
    assert_eq!(printed(&opened), rows);
}

/// Returns what a second program on a directory prints.
fn refusal(dir: &Path) -> String {
    let servers = Path::new(env!("CARGO_BIN_EXE_nyala-sql")).with_file_name("nyala");
    format!(
        "nyala-sql: --dir {dir}: {}: master-1: the directory {dir}/master-1/wal is in use by another process; stop that \
         one or choose another directory\n",
        servers.display(),
        dir = dir.display()
    )
}

#[test]
fn a_missing_program_is_named() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let failed = run(dir.path(), &["--nyala", "/nowhere/nyala", "-c", "SELECT 1"]);
    assert_eq!(failed.status.code(), Some(1));
    let expected = format!(
        "nyala-sql: --dir {}: /nowhere/nyala: No such file or directory (os error 2); install it beside nyala-sql or on \
         PATH, or give --nyala PROGRAM\n",
        dir.path().display()
    );
    assert_eq!(error(&failed), expected);
    let both = run(dir.path(), &["--master", "127.0.0.1:7051", "-c", "SELECT 1"]);
    assert_eq!(both.status.code(), Some(2), "{}", error(&both));
}
