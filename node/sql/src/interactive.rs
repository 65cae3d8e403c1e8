//! The interactive shell: statements over several lines, history, completion, commands with a backslash.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use nyala_client::Client;
use rustyline::completion::{Completer, Pair};
use rustyline::config::Config;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Context, Editor, Helper};

use super::error::SqlError;
use super::output::Format;
use super::shell::Shell;
use super::tokens::is_complete;

const HELP: &str = "\
A statement ends with ';' and may span lines. Ctrl-C cancels it, Ctrl-D leaves.
  \\d             tables
  \\d NAME        columns of a table
  \\format NAME   table, csv or json
  \\timing        whether times are printed
  \\?             this help
  \\q             leave
";

/// Tables whose columns are completed: opening each takes a call.
const TABLES_MAX: usize = 50;

/// Words that are completed besides names.
const WORDS: [&str; 46] = [
    "ADD",
    "ALTER",
    "AND",
    "AS",
    "BETWEEN",
    "BY",
    "COLUMN",
    "COPY",
    "COUNT",
    "CREATE",
    "DELETE",
    "DESC",
    "DESCRIBE",
    "DISTINCT",
    "DROP",
    "EXISTS",
    "EXPLAIN",
    "FROM",
    "GROUP",
    "HASH",
    "HAVING",
    "INSERT",
    "INTO",
    "JOIN",
    "LIKE",
    "LIMIT",
    "NOT",
    "NULL",
    "ORDER",
    "PARTITION",
    "PARTITIONS",
    "PRIMARY",
    "RANGE",
    "RENAME",
    "SELECT",
    "SET",
    "SHOW",
    "TABLE",
    "TABLES",
    "TO",
    "UNION",
    "UPDATE",
    "UPSERT",
    "VALUES",
    "WHERE",
    "WITH",
];

/// Reads and runs statements until the end of the input.
pub async fn interact(mut shell: Shell, history: Option<PathBuf>) -> Result<(), SqlError> {
    let failed = |error: ReadlineError| SqlError::new(format!("read the terminal: {error}"));
    let config = Config::builder().completion_type(CompletionType::List).build();
    let names = Arc::new(Mutex::new(names(&shell.executor.client).await));
    let mut editor: Editor<Completion, DefaultHistory> = Editor::with_config(config).map_err(failed)?;
    editor.set_helper(Some(Completion { names: names.clone() }));
    if let Some(path) = &history {
        // There is no history before the first use.
        let _ = editor.load_history(path);
    }
    println!("nyala-sql {}; \\? for help", env!("CARGO_PKG_VERSION"));
    let mut timing = false;
    loop {
        let line = match tokio::task::block_in_place(|| editor.readline("nyala> ")) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(failed(error)),
        };
        if line.trim().is_empty() {
            continue;
        }
        if editor.add_history_entry(line.trim()).is_ok()
            && let Some(path) = &history
        {
            let _ = editor.append_history(path);
        }
        let statement = match line.trim().strip_prefix('\\') {
            None => line,
            Some(command) => match run_command(command, &mut shell, &mut timing) {
                Next::Leave => break,
                Next::Read => continue,
                Next::Run(statement) => statement,
            },
        };
        run_statement(&shell, &statement, timing).await;
        let changes = ["create", "drop", "alter"];
        if changes.iter().any(|word| statement.to_lowercase().contains(word)) {
            let fresh = self::names(&shell.executor.client).await;
            *names.lock().unwrap_or_else(|error| error.into_inner()) = fresh;
        }
    }
    Ok(())
}

async fn run_statement(shell: &Shell, statement: &str, timing: bool) {
    let started = Instant::now();
    let mut print = super::output::to_stdout;
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => eprintln!("cancelled"),
        result = shell.run(statement, &mut print) => {
            if let Err(error) = result {
                eprintln!("error: {error}");
            }
        }
    }
    if timing {
        println!("{:.3} s", started.elapsed().as_secs_f64());
    }
}

/// Action after a command.
enum Next {
    Read,
    Run(String),
    Leave,
}

fn run_command(command: &str, shell: &mut Shell, timing: &mut bool) -> Next {
    let (name, argument) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    match (name, argument.trim().trim_end_matches(';')) {
        ("q" | "quit", _) => return Next::Leave,
        ("d", "") => return Next::Run("SHOW TABLES".to_string()),
        ("d", table) => return Next::Run(format!("DESCRIBE {table}")),
        ("format", "table") => shell.format = Format::Table,
        ("format", "csv") => shell.format = Format::Csv,
        ("format", "json") => shell.format = Format::Json,
        ("format", "parquet") => {
            eprintln!("error: a terminal shows no Parquet; COPY (query) TO 'FILE.parquet'")
        }
        ("timing", _) => {
            *timing = !*timing;
            println!("timing is {}", if *timing { "on" } else { "off" });
        }
        ("?" | "h" | "help", _) => print!("{HELP}"),
        _ => eprintln!("error: unknown command \\{command}; \\? lists the commands"),
    }
    Next::Read
}

/// Returns the names of tables and columns, for completion.
async fn names(client: &Client) -> Vec<String> {
    let mut names = Vec::new();
    for table in client.list_tables(None).await.unwrap_or_default().into_iter().take(TABLES_MAX) {
        if let Ok(table) = client.open_table(&table.name).await {
            names.extend(table.schema().columns().iter().map(|column| column.name.clone()));
        }
        names.push(table.name);
    }
    names.sort();
    names.dedup();
    names
}

/// Completes words and names.
struct Completion {
    names: Arc<Mutex<Vec<String>>>,
}

impl Completer for Completion {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let names = self.names.lock().unwrap_or_else(|error| error.into_inner());
        let (start, found) = candidates(line, at, &names);
        let pair = |name: String| Pair { display: name.clone(), replacement: name };
        Ok((start, found.into_iter().map(pair).collect()))
    }
}

/// Returns where the word before the cursor starts, and what may complete it.
fn candidates(line: &str, at: usize, names: &[String]) -> (usize, Vec<String>) {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let before = &line[..at];
    let start = before
        .rfind(|letter| !is_part(letter))
        .map_or(0, |last| last + before[last..].chars().next().map_or(0, char::len_utf8));
    let word = &before[start..];
    if word.is_empty() {
        return (start, Vec::new());
    }
    let named = names.iter().filter(|name| name.starts_with(word)).cloned();
    let upper = word.to_uppercase();
    let words = WORDS.iter().filter(|known| known.starts_with(&upper)).map(|known| known.to_string());
    (start, named.chain(words).collect())
}

impl Validator for Completion {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let text = context.input().trim();
        match text.is_empty() || text.starts_with('\\') || is_complete(text) {
            true => Ok(ValidationResult::Valid(None)),
            false => Ok(ValidationResult::Incomplete),
        }
    }
}

impl Hinter for Completion {
    type Hint = String;
}

impl Highlighter for Completion {}

impl Helper for Completion {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_words_are_completed() {
        let names = ["cities".to_string(), "city_id".to_string()];
        assert_eq!(
            candidates("select ci", 9, &names),
            (7, vec!["cities".to_string(), "city_id".to_string()])
        );
        assert_eq!(candidates("sel", 3, &names), (0, vec!["SELECT".to_string()]));
        assert_eq!(candidates("select é", 9, &names), (7, Vec::new()));
        assert_eq!(candidates("select ", 7, &names), (7, Vec::new()));
    }
}
