//! An end of a stock `quinn` bulk stream: a process of one thread on one core, `quinn` with its default transport
//! settings on tokio's runtime of one thread.
//!
//! Source and reader stay connected. A pass is a stream: the reader opens it and says what it wants, the source sends
//! all blocks from memory without copying, the reader copies what comes to where it belongs.

use std::error::Error;
use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use orbitkv_native::affinity;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, ServerConfig};
use tokio::sync::mpsc;

use super::BulkArgs;
use super::rival::{AT, CHECK, READ, RIGHT, TOOK, WRONG};
use super::tls;
use crate::Failure;
use crate::payload::Source;

/// What a reader says on a new stream.
const GO: &[u8] = b"go";
/// Where an end binds: any port.
const LOOPBACK: &str = "127.0.0.1:0";
/// Blocks that have content of their own; others repeat it behind a stamp of theirs.
const CONTENTS: usize = 16;

/// Runs one end until nobody wants it any more.
pub fn run(args: &BulkArgs) -> Result<(), Box<dyn Error>> {
    affinity::pin_current_thread(args.core)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match args.from {
        None => runtime.block_on(send(args)),
        Some(address) => runtime.block_on(receive(args, address)),
    }
}

async fn send(args: &BulkArgs) -> Result<(), Failure> {
    let config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls::server()?)?));
    let endpoint = Endpoint::server(config, LOOPBACK.parse()?)?;
    let mut payload = vec![0; args.blocks * args.block_bytes];
    let mut source = Source::seeded(args.seed, CONTENTS, args.block_bytes as u64);
    for (number, blocks) in payload.chunks_mut(CONTENTS * args.block_bytes).enumerate() {
        source.stamp(0, (number * CONTENTS) as u64);
        for (position, block) in blocks.chunks_mut(args.block_bytes).enumerate() {
            block.copy_from_slice(source.block(position));
        }
    }
    let payload = Bytes::from(payload);
    say(&format!("{AT}{}", endpoint.local_addr()?))?;
    let connection = endpoint.accept().await.ok_or("the endpoint is closed")?.await?;
    // Until the reader closes the connection.
    while let Ok((mut sending, mut receiving)) = connection.accept_bi().await {
        receiving.read_to_end(GO.len()).await?;
        for at in (0..payload.len()).step_by(args.block_bytes) {
            sending.write_chunk(payload.slice(at..at + args.block_bytes)).await?;
        }
        sending.finish()?;
    }
    Ok(())
}

async fn receive(args: &BulkArgs, address: SocketAddr) -> Result<(), Failure> {
    let endpoint = Endpoint::client(LOOPBACK.parse()?)?;
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls::client()?)?));
    let connection = endpoint.connect_with(config, address, "localhost")?.await?;
    // Written once, so that its pages are there.
    let mut target = vec![1; args.blocks * args.block_bytes];
    let mut words = words();
    while let Some(word) = words.recv().await {
        match word.as_str() {
            READ => {
                let started = Instant::now();
                pass(&connection, &mut target).await?;
                say(&format!("{TOOK}{}", started.elapsed().as_nanos()))?;
            }
            CHECK => {
                match first_wrong(args, &target) {
                    None => say(RIGHT)?,
                    Some(index) => say(&format!("{WRONG}{index}"))?,
                }
                // So that bytes of this pass are not taken for those of the next.
                target.fill(1);
            }
            other => return Err(format!("{other:?} is no word of ours").into()),
        }
    }
    connection.close(0u32.into(), b"");
    endpoint.wait_idle().await;
    Ok(())
}

/// Fills `target` from a new stream, which ends with it.
async fn pass(connection: &Connection, target: &mut [u8]) -> Result<(), Failure> {
    let (mut sending, mut receiving) = connection.open_bi().await?;
    sending.write_all(GO).await?;
    sending.finish()?;
    let mut at = 0;
    while let Some(chunk) = receiving.read_chunk(usize::MAX, true).await? {
        let place = target.get_mut(at..at + chunk.bytes.len()).ok_or("more came than was asked for")?;
        place.copy_from_slice(&chunk.bytes);
        at += chunk.bytes.len();
    }
    if at == target.len() { Ok(()) } else { Err(format!("{at} of {} bytes came", target.len()).into()) }
}

fn first_wrong(args: &BulkArgs, target: &[u8]) -> Option<usize> {
    let source = Source::seeded(args.seed, CONTENTS, args.block_bytes as u64);
    let mut blocks = target.chunks(args.block_bytes).enumerate();
    let wrong =
        |&(index, block): &(usize, &[u8])| source.require(index % CONTENTS, 0, index as u64, block).is_err();
    blocks.find(wrong).map(|(index, _)| index)
}

/// What this process is told, line by line, read on a thread that only waits.
fn words() -> mpsc::UnboundedReceiver<String> {
    let (tell, told) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lock().lines().map_while(Result::ok);
        lines.take_while(|line| tell.send(line.clone()).is_ok()).for_each(drop);
    });
    told
}

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_of_any_block_is_found() {
        let args = BulkArgs { core: 0, seed: 3, blocks: 20, block_bytes: 4_096, from: None };
        let mut source = Source::seeded(args.seed, CONTENTS, 4_096);
        let mut target = Vec::new();
        for index in 0..args.blocks {
            if index % CONTENTS == 0 {
                source.stamp(0, index as u64);
            }
            target.extend_from_slice(source.block(index % CONTENTS));
        }
        assert_eq!(first_wrong(&args, &target), None);
        for (at, index) in [(0, 0), (4_096 * 17 + 4_095, 17), (4_096 * 20 - 1, 19)] {
            target[at] ^= 1;
            assert_eq!(first_wrong(&args, &target), Some(index));
            target[at] ^= 1;
        }
    }
}
