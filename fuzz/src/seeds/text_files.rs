//! Texts and files that users write.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int8Array, Int32Array, RecordBatch, StringArray};
use node::server::flags::TABLE;
use parquet::arrow::ArrowWriter;

use super::seed::Seed;
use sim_plan::{FaultProfile, Plan, PlanSize};

fn seed(target: &'static str, name: &str, bytes: Vec<u8>) -> Seed {
    (target, name.to_string(), bytes)
}

pub(super) fn seeds() -> Vec<Seed> {
    let mut seeds = plans();
    seeds.extend(configs());
    seeds.extend(cells());
    seeds.push(seed(
        "csv",
        "types",
        b",int8,int32,string,double,date\n1,-5,\"a, b\",1.5,2020-01-31\n2,,,,\n".to_vec(),
    ));
    seeds.push(seed("csv", "tabs", b"\tint8\tbinary\n1\t0x00ff\nx\ty\n".to_vec()));
    seeds.push(seed("parquet", "types", parquet()));
    seeds
}

fn plans() -> Vec<Seed> {
    let plan = |(i, profile): (usize, &FaultProfile)| {
        let plan = Plan::generate(i as u64, *profile, PlanSize::Smoke).to_string();
        // Few lines of each kind are enough.
        let kept: Vec<&str> = plan.lines().filter(|line| !line.starts_with("  ")).collect();
        let ops = plan.lines().filter(|line| line.starts_with("  ")).take(6);
        let text: String = kept.into_iter().chain(ops).map(|line| format!("{line}\n")).collect();
        seed("plan", &format!("{i}"), text.into_bytes())
    };
    FaultProfile::ALL.iter().enumerate().map(plan).collect()
}

fn configs() -> Vec<Seed> {
    let quoted = |name: &str, default: &str| format!("{name} = {default:?}\n");
    let all: String = TABLE.iter().map(|flag| quoted(flag.name, flag.default)).collect();
    let kinds = "fs_wal_dir = \"/wal\" # where\nfs_data_dirs = [\"/a\", '/b']\n\
                 log_sync = false\nrpc_num_service_threads = 4\n";
    vec![seed("config", "all", all.into_bytes()), seed("config", "kinds", kinds.as_bytes().to_vec())]
}

fn cells() -> Vec<Seed> {
    let texts = [
        "-17",
        "3.25e8",
        "2020-01-31",
        "2020-01-31T12:00:00.5Z",
        "0x00ff",
        "true",
        "price decimal(15,2) null",
    ];
    let cell = |(i, text): (usize, &&str)| {
        // Every type reads it once the first byte is changed.
        seed("cell_text", &format!("{i}"), [&[i as u8][..], text.as_bytes()].concat())
    };
    texts.iter().enumerate().map(cell).collect()
}

fn parquet() -> Vec<u8> {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("int8", Arc::new(Int8Array::from(vec![1, 2, 3, 4, 5]))),
        ("int32", Arc::new(Int32Array::from(vec![Some(7), None, Some(-9), None, Some(0)]))),
        ("double", Arc::new(Float64Array::from(vec![0.5, 1.5, f64::NAN, -0.0, 9.0]))),
        ("string", Arc::new(StringArray::from(vec!["a", "b", "b", "b", ""]))),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, array)| (name, array, true)),
    );
    let batch = batch.expect("columns of one length");
    let mut out = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut out, batch.schema(), None).expect("types that Parquet has");
    writer.write(&batch).expect("memory");
    writer.close().expect("memory");
    out
}
