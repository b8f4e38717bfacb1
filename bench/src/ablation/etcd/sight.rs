//! What etcd has done so far, by its own counters and the kernel's.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::Failure;
use crate::processes::processor_time;
use crate::streams::coordinator::Coordinator;

/// Longest silence of an etcd that is asked for its counters.
const WAIT: Duration = Duration::from_secs(10);
/// Bytes of its answer that are read at most.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// Counters at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sight {
    /// Its revision.
    pub revision: u64,
    /// Keys put and deleted.
    pub writes: f64,
    /// Bytes from and to clients, keys and values and all.
    pub client_bytes: f64,
    /// Bytes that it caused to be written to disk.
    pub disk_bytes: f64,
    /// Processor time, in seconds.
    pub seconds: f64,
}

impl Sight {
    /// Now, of the etcd at a URL that is a process of this machine.
    ///
    /// # Errors
    /// If it does not answer, or the kernel does not say.
    pub fn now(url: &str, process: u32) -> Result<Sight, Failure> {
        let text = counters(url)?;
        let of = |names: &[&str]| names.iter().find_map(|name| counter(&text, name)).unwrap_or(0.0);
        let io = fs::read_to_string(format!("/proc/{process}/io"))?;
        Ok(Sight {
            revision: Coordinator::at(url)?.revision()?,
            // Older versions call them otherwise.
            writes: of(&["etcd_mvcc_put_total", "etcd_debugging_mvcc_put_total"])
                + of(&["etcd_mvcc_delete_total", "etcd_debugging_mvcc_delete_total"]),
            client_bytes: of(&["etcd_network_client_grpc_received_bytes_total"])
                + of(&["etcd_network_client_grpc_sent_bytes_total"]),
            disk_bytes: io
                .lines()
                .find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok())
                .unwrap_or(0.0),
            seconds: processor_time(process)?.as_secs_f64(),
        })
    }

    /// What came to it since `before`.
    pub fn since(&self, before: &Sight) -> Sight {
        Sight {
            revision: self.revision - before.revision,
            writes: self.writes - before.writes,
            client_bytes: self.client_bytes - before.client_bytes,
            disk_bytes: self.disk_bytes - before.disk_bytes,
            seconds: self.seconds - before.seconds,
        }
    }
}

/// Its page of counters.
fn counters(url: &str) -> Result<String, Failure> {
    let address = url.strip_prefix("http://").ok_or("the URL of an etcd of this machine")?;
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(WAIT))?;
    stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// The sum of a counter over all its labels; nothing if it is not there.
fn counter(text: &str, name: &str) -> Option<f64> {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let rest = match rest.strip_prefix('{') {
            Some(labels) => labels.rsplit_once('}')?.1,
            None => rest,
        };
        rest.strip_prefix(' ')?.trim().parse::<f64>().ok()
    });
    values.reduce(|sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_over_labels_and_told_from_longer_names() {
        let text = "HTTP/1.0 200 OK\r\n\r\n# HELP etcd_puts of keys\n# TYPE etcd_puts counter\netcd_puts 12\n\
                    etcd_puts_total 99\netcd_bytes{to=\"a\"} 1.5e+03\netcd_bytes{to=\"b}\"} 500\netcd_odd x\n";
        assert_eq!(counter(text, "etcd_puts"), Some(12.0));
        assert_eq!(counter(text, "etcd_bytes"), Some(2_000.0));
        assert_eq!(counter(text, "etcd_odd"), None);
        assert_eq!(counter(text, "etcd"), None);
    }
}
