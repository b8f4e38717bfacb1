//! A Register request, read: the fields by name, the namespace they derive, the demand they make.

use orbitkv_shards::demand::{Demand, GroupDemand};
use orbitkv_shards::leases::ConnectionId;
use orbitkv_wire::engine::Status;
use orbitkv_wire::engine::requests::{GroupRecord, RegisterBody};
use orbitkv_wire::identity::GroupId;
use orbitkv_wire::namespace::{GroupIdentity, GroupKind, GroupKindNumbers, NamespaceIdentity};

use super::connection::Registered;
use super::refusal::Refused;
use super::registry::Registration;

/// A registration's fields, checked and named.
///
/// # Errors
/// A refusal that names the field, the value and what is allowed.
pub fn describe(
    connection: ConnectionId,
    body: &RegisterBody,
    groups: &[GroupRecord],
) -> Result<(Registration, Registered), Refused> {
    let text = |field: &'static str, value: Option<&str>| {
        value.map(str::to_owned).ok_or_else(|| {
            let text = format!("{field} is not valid UTF-8 padded with zeros");
            Refused::new(Status::Malformed, 0, text)
        })
    };
    let instance = text("instance", body.instance.as_str())?;
    let model = text("model", body.model.as_str())?;
    for (field, value) in [("instance", &instance), ("model", &model)] {
        if value.is_empty() {
            return Err(Refused::new(Status::Malformed, 0, format!("{field} is empty: name it")));
        }
    }
    if !(1..=32).contains(&body.hash_bytes) {
        let text = format!("hash_bytes is {}: a block hash has 1 to 32 bytes", body.hash_bytes);
        return Err(Refused::new(Status::Malformed, 32, text));
    }
    let engine = text("engine", body.engine.as_str())?;
    let weights_revision = text("weights_revision", body.weights_revision.as_str())?;
    let adapter = text("adapter", body.adapter.as_str())?;
    let computation = text("computation", body.computation.as_str())?;
    let dtype = text("dtype", body.dtype.as_str())?;
    let layout = text("layout", body.layout.as_str())?;
    let hash_algorithm = text("hash_algorithm", body.hash_algorithm.as_str())?;
    let hash_seed = text("hash_seed", body.hash_seed.as_str())?;
    let mut identities = Vec::with_capacity(groups.len());
    for group in groups {
        let checkpoint = group.kind == 2;
        let numbers = GroupKindNumbers {
            kind: group.kind,
            window_tokens: if checkpoint { 0 } else { group.tokens },
            sink_tokens: group.sink_tokens,
            interval_tokens: if checkpoint { group.tokens } else { 0 },
        };
        let kind = GroupKind::try_from(numbers)
            .map_err(|error| Refused::new(Status::Malformed, u64::from(group.group), error.to_string()))?;
        if group.block_bytes == 0 {
            let text = format!("group {} has blocks of 0 bytes", group.group);
            return Err(Refused::new(Status::Malformed, u64::from(group.group), text));
        }
        identities.push(GroupIdentity { group: GroupId(group.group), kind, block_bytes: group.block_bytes });
    }
    let demands: Vec<_> =
        identities.iter().map(|group| GroupDemand { group: group.group, kind: group.kind }).collect();
    Demand::compile(body.block_tokens, &demands)
        .map_err(|error| Refused::new(Status::Malformed, 0, error.to_string()))?;
    for (rank, size, name) in
        [(body.tp_rank, body.tp_size, "tensor"), (body.pp_rank, body.pp_size, "pipeline")]
    {
        if rank >= size {
            let text = format!("{name}-parallel rank {rank} of world size {size}: ranks are below the size");
            return Err(Refused::new(Status::Malformed, u64::from(size), text));
        }
    }
    let namespace = NamespaceIdentity {
        model: &model,
        weights_revision: &weights_revision,
        adapter: &adapter,
        computation: &computation,
        dtype: &dtype,
        layout: &layout,
        block_tokens: body.block_tokens,
        hash_algorithm: &hash_algorithm,
        hash_bytes: body.hash_bytes as u8,
        hash_seed: hash_seed.as_bytes(),
        rank_invariant: body.rank_invariant == 1,
        tp_rank: body.tp_rank,
        tp_size: body.tp_size,
        pp_rank: body.pp_rank,
        pp_size: body.pp_size,
        groups: &identities,
    }
    .digest();
    let shared = vec![
        ("engine", engine),
        ("model", model),
        ("weights revision", weights_revision),
        ("adapter", adapter),
        ("computation", computation),
        ("dtype", dtype),
        ("layout", layout),
        ("block tokens", body.block_tokens.to_string()),
        ("hash algorithm", hash_algorithm),
        ("hash seed", hash_seed),
        ("hash bytes", body.hash_bytes.to_string()),
        ("tp size", body.tp_size.to_string()),
        ("pp size", body.pp_size.to_string()),
        ("rank invariant", (body.rank_invariant == 1).to_string()),
    ];
    let named: Vec<String> = identities
        .iter()
        .map(|group| format!("{}: {:?}, {} bytes", group.group.0, group.kind, group.block_bytes))
        .collect();
    let ranked = vec![("groups", named.join("; "))];
    let rank = (body.tp_rank, body.pp_rank);
    let registration = Registration { connection, instance, rank, namespace, shared, ranked };
    let groups = identities.iter().map(|group| (group.group, group.kind, group.block_bytes)).collect();
    Ok((registration, Registered { namespace, block_tokens: body.block_tokens, groups }))
}
