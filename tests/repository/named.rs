//! What there is stands in the README: every command of the program, and every operation of the engine channel.

/// Commands that `text` never shows, neither as `orbitkv NAME` nor alone in backticks.
pub fn commands_left_out(text: &str, commands: &[String]) -> Vec<String> {
    let is_shown = |name: &String| {
        let called = format!("orbitkv {name}");
        let goes_on = |rest: &str| rest.starts_with(|c: char| c.is_alphanumeric() || c == '-');
        text.contains(&format!("`{name}`"))
            || text.match_indices(&called).any(|(at, _)| !goes_on(&text[at + called.len()..]))
    };
    commands.iter().filter(|name| !is_shown(name)).cloned().collect()
}

/// Operations that no row of a table in `text` names.
pub fn operations_left_out(text: &str, operations: &[String]) -> Vec<String> {
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let words: Vec<&str> = rows.flat_map(|row| row.split(|c: char| !c.is_alphanumeric())).collect();
    operations.iter().filter(|name| !words.contains(&name.as_str())).cloned().collect()
}

#[cfg(test)]
mod planted {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_is_left_out_is_found() {
        let text = "| `orbitkv node` | the daemon |\n| `sync`, `await-x` | |\n\n    orbitkv turns-more\n    orbitkv owners --json\n";
        let commands = names(&["node", "sync", "await", "turns", "owners"]);
        assert_eq!(commands_left_out(text, &commands), ["await", "turns"]);
        let text = "| channel | Ping, Drains; Query |\nand Drain in prose\n";
        assert_eq!(operations_left_out(text, &names(&["Ping", "Drain", "Query"])), ["Drain"]);
    }
}
