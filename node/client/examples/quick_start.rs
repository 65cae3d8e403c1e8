//! Creates a table, writes typed rows and reads some of them.
//!
//! `cargo run -p nyala-client --example quick_start -- 127.0.0.1:7051` against `nyala up` or a Kudu cluster.

use nyala_client::predicate::Comparison;
use nyala_client::rows::{FromRow, ToRow};
use nyala_client::{Client, ClientResult, DataType};

/// A row: one field per column.
#[derive(Debug, PartialEq, ToRow, FromRow)]
pub(crate) struct Person {
    pub id: i64,
    pub name: Option<String>,
}

/// Runs the example against the cluster with these masters. Returns the rows read, in the order of their keys.
pub(crate) async fn run(masters: Vec<String>) -> ClientResult<Vec<Person>> {
    let client = Client::builder(masters).connect().await?;
    let people = client
        .new_table("people")
        .key("id", DataType::Int64)
        .nullable("name", DataType::String)
        .hash(["id"], 4)
        .replicas(1)
        .create()
        .await?;

    let mut writer = people.writer();
    for id in 0..1000 {
        writer.insert(&Person { id, name: Some(format!("name {id}")) }).await?;
    }
    println!("{} rows written", writer.finish().await?.written);

    let few = people.select().filter("id", Comparison::Less, 3i64).your_writes();
    let mut rows: Vec<Person> = few.collect().await?;
    rows.sort_by_key(|person| person.id);
    Ok(rows)
}

#[allow(dead_code, reason = "tests run the example without it")]
#[tokio::main]
async fn main() -> ClientResult<()> {
    let masters = std::env::args().skip(1).collect();
    run(masters).await?.iter().for_each(|person| println!("{person:?}"));
    Ok(())
}
