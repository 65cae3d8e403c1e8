//! The program `nyala-backup` against an S3 of the test's own, which refuses requests on order.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the program from outside"
)]

#[path = "../../tests/common/backup_world.rs"]
mod backup_world;
#[path = "../../tests/common/embedded.rs"]
mod embedded;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use backup_world::World;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use nyala_backup::storage::Storage;
use nyala_backup_cloud::storage::ObjectStorage;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s::{S3Result, s3_error};

const SECRET: &str = "a-secret-that-nobody-reads";

/// Requests to refuse: an operation, a part of its path, the number of refusals.
type Refusals = Arc<Mutex<Vec<(&'static str, String, usize)>>>;

struct Access(Refusals);

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        if context.credentials().is_none() {
            return Err(s3_error!(AccessDenied, "no credentials"));
        }
        let (operation, path) = (context.s3_op().name(), context.uri().path().to_string());
        let mut refusals = self.0.lock().expect("no check panics");
        let meant = |refusal: &&mut (&'static str, String, usize)| {
            refusal.0 == operation && path.contains(&refusal.1) && refusal.2 > 0
        };
        match refusals.iter_mut().find(meant) {
            Some(refusal) => {
                refusal.2 -= 1;
                Err(s3_error!(SlowDown, "on order"))
            }
            None => Ok(()),
        }
    }
}

/// S3 on a folder, with one bucket.
struct S3 {
    address: String,
    folder: tempfile::TempDir,
    refusals: Refusals,
}

impl S3 {
    async fn start() -> S3 {
        let folder = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(folder.path().join("bucket")).expect("an empty folder");
        let refusals = Refusals::default();
        let mut service = S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder.path()).expect("a folder"));
        service.set_auth(SimpleAuth::from_single("user", SECRET));
        service.set_access(Access(refusals.clone()));
        let service = service.build();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = format!("http://{}", listener.local_addr().expect("it is bound"));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let connection = Builder::new(TokioExecutor::new());
                    let _ = connection.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        S3 { address, folder, refusals }
    }

    fn refuse(&self, operation: &'static str, path: &str, times: usize) {
        self.refusals.lock().expect("no check panics").push((operation, path.to_string(), times));
    }

    /// Returns the number of refusals that are left, and forgets them.
    fn settle(&self) -> usize {
        self.refusals.lock().expect("no check panics").drain(..).map(|refusal| refusal.2).sum()
    }

    /// Returns the objects whose names end so.
    fn objects(&self, ending: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.folder.path().join("bucket")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("a name").path();
                match path.is_dir() {
                    true => folders.push(path),
                    false if path.to_string_lossy().ends_with(ending) => found.push(path),
                    false => {}
                }
            }
        }
        found.sort();
        found
    }

    async fn program(&self, world: &World, secret: &str, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nyala-backup"));
        command.env_clear().args(words);
        let settings = [
            ("AWS_ACCESS_KEY_ID", "user"),
            ("AWS_SECRET_ACCESS_KEY", secret),
            ("AWS_ENDPOINT", &self.address),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
        ];
        command.envs(settings);
        if ["create", "restore"].contains(&words[0]) {
            command.args(["--masters", &world.embedded.masters()]);
        }
        let output = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic");
        output.expect("the program is built")
    }

    /// Runs a command that succeeds; returns what it prints.
    async fn run(&self, world: &World, words: &[&str]) -> String {
        let output = self.program(world, SECRET, words).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {errors}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Runs a command that fails; returns its code and error.
    async fn refused(&self, world: &World, words: &[&str]) -> (Option<i32>, String) {
        let output = self.program(world, SECRET, words).await;
        assert!(!output.status.success(), "{words:?}");
        (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
    }
}

const STORE: &str = "s3://bucket/nightly/";

async fn create_table(world: &World, name: &str, rows: std::ops::Range<u32>) {
    let columns = ["--column", "k int32", "--column", "v string", "--hash", "k:2"];
    world.run(&[&["table", "create", name][..], &columns].concat()).await;
    import(world, name, rows, "first").await;
}

async fn table_id(client: &nyala_client::Client, name: &str) -> String {
    client.open_table(name).await.expect("a table").id().to_string()
}

async fn import(world: &World, name: &str, rows: std::ops::Range<u32>, value: &str) {
    let input = world.path("in.csv");
    let rows: String = rows.map(|k| format!("{k},{value} {k}\n")).collect();
    std::fs::write(&input, format!("k,v\n{rows}")).expect("the test owns the directory");
    world.run(&["table", "import", name, &input, "--mode", "upsert"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_backed_up_to_s3_and_restored() {
    let mut world = World::new().await;
    let s3 = S3::start().await;
    create_table(&world, "sales €", 0..100).await;
    let first = world.rows("sales €").await;
    s3.run(&world, &["create", STORE, "sales €"]).await;
    import(&world, "sales €", 50..150, "second").await;
    let second = world.rows("sales €").await;
    let printed = s3.run(&world, &["create", STORE, "sales €", "--incremental"]).await;
    assert!(printed.starts_with("backed up sales €: 100 rows, ") && printed.contains("since "), "{printed}");

    assert_eq!(s3.run(&world, &["list", STORE]).await.lines().count(), 3);
    assert_eq!(s3.run(&world, &["verify", STORE, "--deep"]).await, "2 backups read, 0 faults\n");
    let shown = s3.run(&world, &["show", STORE, "sales €"]).await;
    let to_ms = shown.split_once('/').and_then(|(_, rest)| rest.split_once(':')).expect("a directory").0;
    s3.run(&world, &["restore", STORE, "sales €", "--as", "new"]).await;
    assert_eq!(world.rows("new").await, second);
    let until = format!("{to_ms}000");
    s3.run(&world, &["restore", STORE, "sales €", "--as", "old", "--until", &until]).await;
    assert_eq!(world.rows("old").await, first);

    // Damage is named, and refuses a restore.
    let part = &s3.objects(".parquet")[0];
    let bytes = std::fs::read(part).expect("a file");
    std::fs::write(part, &bytes[1..]).expect("the test owns the folder");
    let (_, message) = s3.refused(&world, &["verify", STORE]).await;
    let name = part.file_name().and_then(|name| name.to_str()).expect("UTF-8");
    assert!(message.contains(name), "{message}");
    let (_, message) = s3.refused(&world, &["restore", STORE, "sales €", "--as", "damaged"]).await;
    assert!(message.contains(name) && world.client.open_table("damaged").await.is_err(), "{message}");
    std::fs::write(part, bytes).expect("the test owns the folder");

    // A newer full backup makes the chain before it superfluous at once.
    s3.run(&world, &["create", STORE, "sales €", "--full"]).await;
    let kept = s3.run(&world, &["prune", STORE, "--keep", "0d"]).await;
    assert!(kept.ends_with("1 of 3 backups stay\n"), "{kept}");
    assert_eq!(s3.objects(".kudu-metadata.json").len(), 1);
    s3.run(&world, &["restore", STORE, "sales €", "--as", "last"]).await;
    assert_eq!(world.rows("last").await, second);
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_remains_of_runs_are_removed() {
    let mut world = World::new().await;
    let s3 = S3::start().await;
    let nightly = s3.folder.path().join("bucket/nightly");
    for file in ["web-logs/2024/access.log", "1-interrupted/2024/.nyala-run", "1-interrupted/2024/part"] {
        let path = nightly.join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the test owns the folder");
        let written = std::fs::File::create(&path).expect("the test owns the folder");
        // Remains count as being written until a day after their last object.
        written.set_modified(std::time::UNIX_EPOCH).expect("the test owns the file");
    }
    let printed = s3.run(&world, &["prune", STORE, "--keep", "0d"]).await;
    assert_eq!(printed, "removed 1-interrupted/2024\n0 of 0 backups stay\n");
    assert_eq!(s3.objects(""), [nightly.join("web-logs/2024/access.log")]);
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_fails_is_asked_again_and_then_reported() {
    let mut world = World::new().await;
    let s3 = S3::start().await;
    create_table(&world, "bad", 0..10).await;
    create_table(&world, "good", 0..10).await;
    // Errors that pass.
    for operation in ["PutObject", "GetObject", "HeadObject", "ListObjectsV2"] {
        s3.refuse(operation, "", 2);
    }
    s3.run(&world, &["create", STORE, "bad", "good"]).await;
    s3.run(&world, &["verify", STORE]).await;
    assert_eq!(s3.settle(), 0, "each operation was tried");

    // Parts of one table can no longer be written.
    let id = table_id(&world.client, "bad").await;
    s3.refuse("PutObject", &format!("{id}-bad"), usize::MAX);
    let before = s3.objects(".kudu-metadata.json").len();
    let (code, message) = s3.refused(&world, &["create", STORE, "bad", "good", "--full"]).await;
    assert_eq!(code, Some(1));
    assert!(message.contains("table bad: ") && message.contains("SlowDown"), "{message}");
    assert!(!message.contains("table good"), "{message}");
    assert_eq!(s3.objects(".kudu-metadata.json").len(), before + 1);
    s3.settle();
    s3.run(&world, &["verify", STORE, "--deep"]).await;
    let rows = world.rows("bad").await;
    s3.run(&world, &["restore", STORE, "bad", "--as", "restored"]).await;
    assert_eq!(world.rows("restored").await, rows);
    world.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_are_checked_and_not_shown() {
    let mut world = World::new().await;
    let s3 = S3::start().await;
    let wrong = "another-secret";
    let output = s3.program(&world, wrong, &["list", STORE]).await;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(!message.contains(wrong) && message.contains("SignatureDoesNotMatch"), "{message}");
    let (_, message) = s3.refused(&world, &["list", "s3://user:word@bucket/nightly"]).await;
    assert!(
        message.contains("give credentials by the environment") && !message.contains("word@"),
        "{message}"
    );
    let (_, message) = s3.refused(&world, &["list", "ftp://bucket/nightly"]).await;
    assert!(message.contains("ftp:// is no directory"), "{message}");
    world.embedded.shutdown().await;
}

/// A file of several parts. Interrupted, it is not there, and its upload was aborted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_files_are_uploaded_in_parts() {
    let s3 = S3::start().await;
    let store = object_store::aws::AmazonS3Builder::new()
        .with_url("s3://bucket")
        .with_access_key_id("user")
        .with_secret_access_key(SECRET)
        .with_endpoint(&s3.address)
        .with_allow_http(true)
        .build()
        .expect("complete settings");
    let storage = ObjectStorage::new(Arc::new(store), "large", tokio::runtime::Handle::current());
    let storage = storage.expect("a legal prefix");
    let bytes: Vec<u8> = (0..40u32 << 20).map(|i| (i % 251) as u8).collect();
    tokio::task::spawn_blocking(move || {
        s3.refuse("UploadPart", "", 1);
        let mut file = storage.create("file").expect("a legal path");
        file.write_all(&bytes).expect("a store that answers");
        file.finish().expect("a store that answers");
        assert_eq!(s3.settle(), 0, "a part was sent again");
        let mut read = Vec::new();
        storage.open("file").expect("a file").read_to_end(&mut read).expect("a store that answers");
        assert!(read == bytes);
        let mut file = storage.create("dropped").expect("a legal path");
        file.write_all(&bytes).expect("a store that answers");
        drop(file);
        assert_eq!(storage.list("").expect("a store that answers"), ["file"]);
    })
    .await
    .expect("no panic");
}
