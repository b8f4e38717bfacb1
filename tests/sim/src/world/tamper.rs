//! Planted bugs in how the driver delivers frames. Without a canary nothing here does anything.

use std::collections::{BTreeMap, BTreeSet};

use orbitkv_wire::identity::Sequence;
use orbitkv_wire::inventory::{
    ChangeRef, ChangesWriter, FromRequester, FromSource, HEADER_BYTES, Header, Tag, WireChange,
    append_from_requester, decode_from_source, header_bytes, source_body,
};

use super::World;
use crate::canary::Canary;
use crate::network::ConnectionName;
use crate::truth::{KeyId, StreamName};

/// What was tampered with.
#[derive(Default)]
pub(crate) struct Tampered {
    /// Connections of which a delta was dropped: its `from`, until the next delta has claimed it.
    dropped: BTreeMap<ConnectionName, Option<Sequence>>,
    /// Blocks that a source told of, by its life.
    told: BTreeMap<StreamName, KeyId>,
    /// Connections that had their forged frame.
    done: BTreeSet<ConnectionName>,
    /// Nodes that have lost a returned permit.
    lost: BTreeSet<u16>,
}

impl Tampered {
    /// Whether a returned permit is lost now: the first of each node.
    pub(crate) fn lose_return(&mut self, node: u16) -> bool {
        self.lost.insert(node)
    }
}

fn is_put(change: &ChangeRef<'_>) -> bool {
    matches!(change.change, WireChange::Put { .. })
}

impl World {
    /// The frame to deliver instead, or nothing.
    pub(crate) fn tamper(
        &mut self,
        name: ConnectionName,
        stream: StreamName,
        header: &Header,
        frame: &[u8],
    ) -> Option<Vec<u8>> {
        let Some(canary) = self.canary else { return Some(frame.to_vec()) };
        let body = &frame[HEADER_BYTES..];
        let message = decode_from_source(header, body).expect("our sources send frames");
        match canary {
            Canary::DropDelta => return self.drop_delta(name, header, &message, frame),
            Canary::ChangeBytes => {
                if let FromSource::Delta { changes, .. } = message
                    && let Some(at) = changes.iter().position(|change| is_put(&change))
                {
                    let mut frame = frame.to_vec();
                    // `bytes` lies before the sequence at the end of a record.
                    let after = changes.len() - at - 1;
                    let place = frame.len() - after * orbitkv_wire::inventory::RECORD_BYTES - 12;
                    frame[place] ^= 1;
                    // A put of no bytes would be no frame at all.
                    frame[place + 1] |= 1;
                    return Some(frame);
                }
            }
            Canary::OldSession => return Some(self.mix_in_old(stream, header, &message, frame)),
            Canary::ForgeProgress => {
                if let FromSource::Progress { through } = message
                    && self.tampered.done.insert(name)
                {
                    let forged = FromSource::Progress { through: Sequence(through.0 + 3) };
                    let header = Header { head: header.head.max(through.0 + 3), ..*header };
                    return Some([&header_bytes(&header)[..], &source_body(&forged).bytes].concat());
                }
            }
            _ => {}
        }
        Some(frame.to_vec())
    }

    fn drop_delta(
        &mut self,
        name: ConnectionName,
        header: &Header,
        message: &FromSource<'_>,
        frame: &[u8],
    ) -> Option<Vec<u8>> {
        let dropped = &mut self.tampered.dropped;
        let mut header = *header;
        match (*message, dropped.get(&name).copied()) {
            (FromSource::Delta { from, changes, .. }, None) if changes.len() > 1 => {
                dropped.insert(name, Some(from));
                None
            }
            (_, None) => Some(frame.to_vec()),
            (FromSource::Delta { through, changes, .. }, Some(Some(claimed))) => {
                dropped.insert(name, None);
                header.frame -= 1;
                let forged = source_body(&FromSource::Delta { from: claimed, through, changes });
                Some([&header_bytes(&header)[..], &forged.bytes].concat())
            }
            (_, Some(_)) => {
                header.frame -= 1;
                Some([&header_bytes(&header)[..], &frame[HEADER_BYTES..]].concat())
            }
        }
    }

    /// The first put of a delta names a block of a former life.
    fn mix_in_old(
        &mut self,
        stream: StreamName,
        header: &Header,
        message: &FromSource<'_>,
        frame: &[u8],
    ) -> Vec<u8> {
        let FromSource::Delta { from, through, changes } = *message else { return frame.to_vec() };
        let universe = &self.truth.universe;
        let namespaces: Vec<_> = changes.namespaces().collect();
        let former = (self.tampered.told.iter())
            .find(|(told, _)| told.node == stream.node && told.incarnation != stream.incarnation)
            .map(|(_, key)| *universe.get(*key));
        let Some(former) = former.filter(|_| changes.iter().any(|change| is_put(&change))) else {
            if let Some(change) = changes.iter().next()
                && let Some(key) =
                    universe.find(&namespaces[usize::from(change.namespace)], change.group, change.block)
            {
                self.tampered.told.insert(stream, key);
            }
            return frame.to_vec();
        };
        let mut writer = ChangesWriter::new(orbitkv_wire::bounds::INVENTORY_BODY_BYTES_MAX);
        writer.delta(from, through);
        let mut swapped = false;
        for change in changes.iter() {
            let namespace = namespaces[usize::from(change.namespace)];
            let block = orbitkv_wire::identity::BlockHash(*change.block);
            let old = !swapped && is_put(&change);
            swapped |= old;
            let (namespace, group, block) = if old {
                (former.namespace, former.group, former.block)
            } else {
                (namespace, change.group, block)
            };
            writer
                .push(&namespace, group, &block, change.medium, change.change, change.sequence)
                .expect("one body holds what another held");
        }
        let body = writer.finish();
        let length = (HEADER_BYTES + body.bytes.len()) as u32;
        [&header_bytes(&Header { length, ..*header })[..], &body.bytes].concat()
    }

    /// The frame that the source hears instead of an acknowledgement.
    pub(crate) fn tamper_ack(
        &mut self,
        name: ConnectionName,
        header: &Header,
        message: &FromRequester,
    ) -> Option<Vec<u8>> {
        if self.canary != Some(Canary::AckEarly) {
            return None;
        }
        let FromRequester::Ack { view, applied, .. } = *message else { return None };
        let consumed_frame = self.sessions[&name].frames_sent();
        let forged = FromRequester::Ack { consumed_frame, view, applied };
        let mut bytes = Vec::new();
        append_from_requester(&mut bytes, Tag(header.tag), header.frame, &forged);
        Some(bytes)
    }
}
