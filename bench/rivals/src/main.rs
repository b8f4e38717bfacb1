//! Indexers of others, loaded and asked as `orbitkv-bench index` does with its own index: the same rows and queries,
//! derived by the same code from the same trace, timed by the same driver. It starts this program once for each
//! indexer and number of owners; see `bench/src/index/cell.rs`.

#[path = "../../src/index/trace/driver.rs"]
mod driver;
#[path = "../../src/index/trace/stream.rs"]
mod stream;

mod dynamo;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use dynamo::{ConcurrentRadix, Positional, Radix};
use stream::{Stream, Trace};

const USAGE: &str = "usage: orbitkv-rivals INDEXER TRACE OWNERS ROWS SEED QUERIES QUERY_MS
INDEXER: dynamo-concurrent-radix, dynamo-positional or dynamo-radix";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(found) => {
            println!("{found}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("orbitkv-rivals: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<serde_json::Value, String> {
    let [indexer, path, numbers @ ..] = arguments else { return Err(USAGE.into()) };
    let numbers: Result<Vec<u64>, _> = numbers.iter().map(|number| number.parse()).collect();
    let Ok(&[owners, rows, seed, queries, query_ms]) = numbers.as_deref() else { return Err(USAGE.into()) };
    let owners = u32::try_from(owners).ok().filter(|&owners| owners > 0).ok_or(USAGE)?;
    let trace = Trace::read(Path::new(path)).map_err(|error| format!("{path}: {error}"))?;
    let stream = Stream::derive(&trace, owners, rows, seed);
    let time = Duration::from_millis(query_ms);
    match indexer.as_str() {
        "dynamo-concurrent-radix" => Ok(driver::measure(&stream, ConcurrentRadix::new, queries, time)),
        "dynamo-positional" => Ok(driver::measure(&stream, Positional::new, queries, time)),
        "dynamo-radix" => Ok(driver::measure(&stream, Radix::new, queries, time)),
        _ => Err(USAGE.into()),
    }
}
