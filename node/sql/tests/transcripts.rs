//! Transcripts of SQL against one embedded cluster: statements and what they print. Then the program against it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use node::server::cluster::{Cluster, ClusterConfig};
use node::server::flags::Flags;
use nyala_client::Client;
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_sql::{Format, Shell};

/// Transcripts, in the order in which they run.
const TRANSCRIPTS: [&str; 10] =
    ["ddl", "select", "joins", "write", "conditions", "floats", "aggregates", "snapshot", "errors", "copy"];

async fn cluster(dir: &std::path::Path) -> Cluster {
    let env = OsEnv::new(&OsOptions::default()).expect("this machine");
    let flags = Flags::new();
    flags.set("log_sync", "false").expect("a flag");
    // A case switches a feature of the servers off.
    flags.set("superuser_acl", "*").expect("a flag");
    let config = ClusterConfig::on_loopback(dir.to_str().expect("UTF-8"), 1, flags);
    Cluster::start(&env, &config).await.expect("free ports and a fresh directory")
}

#[test]
fn transcripts_match_and_the_program_runs_scripts() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut cluster = runtime.block_on(cluster(dir.path()));
    let connected = runtime.block_on(Client::builder(cluster.master_addresses()).connect());
    let client = connected.expect("a leader");
    let timestamps = RefCell::new(BTreeMap::new());
    let files = tempfile::tempdir().expect("a temporary directory");
    for transcript in TRANSCRIPTS {
        let path = format!("tests/transcripts/{transcript}");
        assert!(std::path::Path::new(&path).exists(), "{path} is missing");
        datadriven::walk(&path, |file| {
            file.run(|case| {
                let context =
                    Context { client: client.clone(), timestamps: &timestamps, files: files.path() };
                runtime.block_on(run(context, &case.directive, &case.input))
            });
        });
    }
    scripts_come_from_three_places(&cluster.master_addresses().join(","));
    runtime.block_on(cluster.shutdown());
}

/// Runs the program with these arguments and this standard input.
fn program(masters: &str, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nyala-sql"))
        .args(["--master", masters])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A program that does not read its input may have ended.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    child.wait_with_output().expect("the program ends")
}

fn scripts_come_from_three_places(masters: &str) {
    let printed = |arguments: &[&str], input: &str| {
        let output = program(masters, arguments, input);
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(output.status.success(), "{error}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let create = "CREATE TABLE p (k INT PRIMARY KEY) PARTITION BY HASH (k) PARTITIONS 2";
    let insert = "INSERT INTO p VALUES (1), (2)";
    assert_eq!(printed(&["--format", "csv", "-c", create, "-c", insert], ""), "count\n2\n");
    let select = "SELECT k FROM p\nORDER BY k -- all;\n";
    assert_eq!(printed(&["--format", "csv"], select), "k\n1\n2\n");
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), select).expect("a written file");
    let path = file.path().to_str().expect("UTF-8");
    assert_eq!(printed(&["--format", "json", "-f", path], ""), "{\"k\":1}\n{\"k\":2}\n");

    let parquet = program(masters, &["--format", "parquet", "-c", "SELECT k FROM p ORDER BY k"], "");
    assert!(
        parquet.status.success() && parquet.stdout.starts_with(b"PAR1") && parquet.stdout.ends_with(b"PAR1")
    );
    let both = program(masters, &["--format", "parquet", "-c", "SELECT 1", "-c", "SELECT 2"], "");
    let error = String::from_utf8_lossy(&both.stderr);
    assert!(error.starts_with("nyala-sql: a Parquet file holds one result"), "{error}");

    let failed =
        program(masters, &["--format", "csv", "-c", "SELECT 1 AS a; DROP TABLE q; SELECT 2 AS a"], "");
    assert_eq!(failed.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&failed.stdout), "a\n1\n");
    let error = String::from_utf8_lossy(&failed.stderr);
    assert!(error.starts_with("nyala-sql: table q: "), "{error}");
}

/// Surroundings of a case.
struct Context<'a> {
    client: Client,
    timestamps: &'a RefCell<BTreeMap<String, u64>>,
    /// Directory of files, `$DIR` in statements.
    files: &'a Path,
}

/// Runs the statements of a case. The directive is the format, or one of:
///
/// - `rows` prints CSV, and has no aggregations of the servers.
/// - `both` prints CSV, which must be the same with aggregations of the servers, without, and if the servers refuse them.
/// - `write` writes the file in the first line of the input, with the other lines.
/// - `file` shows a file.
/// - `snapshot` keeps the current timestamp under the name in the input; `$name` in later statements is that timestamp.
/// - `recreate` drops the table in the input and creates it by what SHOW CREATE TABLE printed for it.
async fn run(context: Context<'_>, directive: &str, script: &str) -> String {
    let Context { client, timestamps, files } = context;
    let format = match directive {
        "table" => Format::Table,
        "csv" => Format::Csv,
        "json" => Format::Json,
        "rows" | "both" => Format::Csv,
        "snapshot" => {
            let seen = client.observed_timestamp().expect("a statement ran before");
            timestamps.borrow_mut().insert(format!("${}", script.trim()), seen + 1);
            return "kept\n".to_string();
        }
        "write" => {
            let (name, text) = script.split_once('\n').expect("a name and lines");
            std::fs::write(files.join(name), text).expect("a written file");
            return "written\n".to_string();
        }
        "file" => return std::fs::read_to_string(files.join(script.trim())).expect("a file of text"),
        "recreate" => return recreate(client, script.trim()).await,
        other => panic!("unknown directive {other}"),
    };
    let dir = files.to_str().expect("UTF-8");
    let mut script = script.replace("$DIR", dir);
    for (name, timestamp) in timestamps.borrow().iter() {
        script = script.replace(name, &timestamp.to_string());
    }
    let shell = Shell::new(client.clone(), format).target_partitions(2);
    let printed = printed(&shell.server_aggregation(directive != "rows"), &script).await;
    if directive == "both" {
        let of_rows = Shell::new(client.clone(), format).target_partitions(2).server_aggregation(false);
        assert_eq!(printed, self::printed(&of_rows, &script).await, "{script}");
        let of_one_partition = Shell::new(client.clone(), format).target_partitions(1);
        assert_eq!(printed, self::printed(&of_one_partition, &script).await, "{script}");
        let refused = Shell::new(client.clone(), format).target_partitions(2);
        support_aggregation(&client, false).await;
        assert_eq!(printed, self::printed(&refused, &script).await, "{script}");
        support_aggregation(&client, true).await;
    }
    mask(&printed.replace(dir, "$DIR"))
}

/// Sets if the tablet servers aggregate.
async fn support_aggregation(client: &Client, support: bool) {
    for server in client.servers().await.expect("a list") {
        let value = support.to_string();
        let address = format!("{}:{}", server.host, server.port);
        client.set_flag(&address, "tserver_support_aggregation", &value, false).await.expect("a flag");
    }
}

/// Returns what a script prints, and its error.
async fn printed(shell: &Shell, script: &str) -> String {
    let mut printed = String::new();
    let mut print = |text: &[u8]| {
        printed.push_str(std::str::from_utf8(text).expect("UTF-8"));
        Ok(())
    };
    let result = shell.run(script, &mut print).await;
    if let Err(error) = result {
        printed.push_str(&format!("error: {error}\n"));
    }
    if printed.is_empty() {
        printed.push_str("done\n");
    }
    printed
}

/// Replaces ids of tables and the current time, which differ from run to run.
fn mask(text: &str) -> String {
    let masked = |word: &str| {
        let is_id = word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_id { "<id>".to_string() } else { word.to_string() }
    };
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let line = line.split(' ').map(masked).collect::<Vec<_>>().join(" ");
        lines.push(match (line.find("(now "), line.find("); give")) {
            (Some(from), Some(to)) => format!("{}(now <time>{}", &line[..from], &line[to..]),
            _ => line,
        });
    }
    lines.join("\n")
}

/// Creates a table again by its own statement. Returns the statement, which must be the same for the new table.
async fn recreate(client: Client, table: &str) -> String {
    let statement = create_statement(&client, table).await;
    let shell = Shell::new(client.clone(), Format::Table);
    let mut print = |_: &[u8]| Ok(());
    shell
        .run(&format!("DROP TABLE {table}; {statement}"), &mut print)
        .await
        .expect("statements that succeed");
    assert_eq!(create_statement(&client, table).await, statement);
    format!("{statement}\n")
}

async fn create_statement(client: &Client, table: &str) -> String {
    let mut printed = String::new();
    let mut print = |text: &[u8]| {
        printed.push_str(std::str::from_utf8(text).expect("UTF-8"));
        Ok(())
    };
    let shell = Shell::new(client.clone(), Format::Csv);
    shell.run(&format!("SHOW CREATE TABLE {table}"), &mut print).await.expect("a statement that succeeds");
    // CSV has a line with the column's name, then the statement in quotes.
    let cell = printed.strip_prefix("statement\n\"").and_then(|cell| cell.strip_suffix("\"\n"));
    cell.expect("a quoted cell").replace("\"\"", "\"")
}
