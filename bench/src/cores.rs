//! The two cores that a measurement is divided between.

use orbitkv_native::affinity;

use crate::Failure;

/// The two cores a list names, or the default ones of those that are available. `whose` says in words what runs on
/// each.
///
/// # Errors
/// If they are not two different cores that this process may use.
pub fn two_cores(
    list: Option<&str>,
    default: fn(&[usize]) -> [Option<&usize>; 2],
    whose: &str,
) -> Result<[usize; 2], Failure> {
    let available = affinity::available_cores()?;
    let named = match list {
        Some(list) => affinity::parse_core_list(list)?,
        None => default(&available).into_iter().flatten().copied().collect(),
    };
    affinity::check_cores(&named, &available)?;
    match named[..] {
        [one, other] if one != other => Ok([one, other]),
        _ => Err(format!(
            "--cores {}: name two different cores, {whose}; available are {}",
            list.unwrap_or("(default)"),
            affinity::format_core_list(&available)
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_core_is_not_two_and_the_refusal_names_input_and_remedy() {
        let core = affinity::available_cores().expect("cores")[0].to_string();
        for list in [core.clone(), format!("{core},{core}")] {
            let refused =
                two_cores(Some(&list), |all| [all.first(), all.last()], "this one's and that one's");
            let words = refused.expect_err("not two cores").to_string();
            assert!(words.contains(&core), "{words}");
        }
        let words = two_cores(Some(&core), |all| [all.first(), all.last()], "this one's and that one's");
        let words = words.expect_err("not two cores").to_string();
        assert!(words.contains("--cores") && words.contains("that one's"), "{words}");
    }
}
