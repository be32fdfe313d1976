import argparse
import builtins
import collections
import enum
import functools
import os
import pathlib
import pickle
import sys
import types
import zipfile

import numpy as np
import pytest
import torch

from residual_hf.base.errors import InputError
from residual_hf.conversion import pickles
from residual_hf.conversion.pickles import load_pickle, to_plain

WITNESS = "a_pickle_was_here"


class Call:
    """Pickled as a call of `function`, which `pickle.load` would execute."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


ATTACKS = {
    "system": (Call(os.system, f"touch {WITNESS}"), r"(posix|nt)\.system"),
    "eval": (Call(eval, f"open('{WITNESS}', 'w')"), r"builtins\.eval"),
    "exec": (Call(exec, f"open('{WITNESS}', 'w')"), r"builtins\.exec"),
    "open": (Call(open, WITNESS, "w"), r"_?io\.open"),
    "getattr": (Call(getattr, Call(builtins.__import__, "os"), "system"), r"builtins\.(getattr|__import__)"),
    "nested": ({"a": [(Call(os.popen, f"touch {WITNESS}"),)]}, r"os\.popen"),
    "argument": (Call(collections.OrderedDict, [(1, Call(os.mkdir, WITNESS))]), r"(posix|nt)\.mkdir"),
    "partial": (functools.partial(os.mkdir, WITNESS), r"functools\.partial"),
    "pickle_in_pickle": (Call(pickle.loads, pickle.dumps(Call(os.mkdir, WITNESS))), r"_?pickle\.loads"),
    "path": (Call(os.unlink, WITNESS), r"(posix|nt)\.unlink"),
    "numpy": (Call(np.load, WITNESS), r"numpy\.load"),
    "torch": (Call(torch.hub.load_state_dict_from_url, "file:///x"), r"torch\.hub\.load_state_dict_from_url"),
    "load": (Call(torch.load, WITNESS), r"torch\.serialization\.load"),
}


def write(path, pickled: bytes, zipped: bool):
    """A file of torch.save with this pickle in the place of the object's."""
    torch.save({}, path, _use_new_zipfile_serialization=zipped)
    if zipped:
        with zipfile.ZipFile(path) as archive:
            records = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, record in records.items():
                archive.writestr(name, pickled if name.endswith("data.pkl") else record)
        return path
    whole = path.read_bytes()
    plain = pickle.dumps({}, protocol=2)
    assert whole.count(plain) == 1
    path.write_bytes(whole.replace(plain, pickled))
    return path


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("attack", ATTACKS)
def test_malicious_pickles_are_refused_by_name_and_run_nothing(attack, protocol, zipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    payload, name = ATTACKS[attack]
    path = write(tmp_path / "evil.pt", pickle.dumps({"model": {}, "x": payload}, protocol=protocol), zipped)
    with pytest.raises(InputError, match=rf"evil\.pt: .*(the pickle names {name}, |protocol 4).*nothing was run"):
        load_pickle(path)
    assert os.listdir(tmp_path) == ["evil.pt"]


def test_the_same_attack_works_on_a_plain_unpickler(tmp_path, monkeypatch):
    """The tests above can fail: what they hold back does run elsewhere."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(ATTACKS["argument"][0], protocol=2))
    assert os.listdir(tmp_path) == [WITNESS]


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_plug_ins_may_be_named_but_are_not_imported(zipped, tmp_path, monkeypatch):
    plugin = types.ModuleType("my_plugin")
    plugin.build = functools.wraps(print)(lambda *args: None)
    plugin.build.__module__, plugin.build.__qualname__ = "my_plugin", "build"
    plugin.Config = type("Config", (), {"__module__": "my_plugin"})
    monkeypatch.setitem(sys.modules, "my_plugin", plugin)
    made = plugin.Config()
    made.width = 5
    named = pickle.dumps({"type": plugin.Config, "config": made}, protocol=2)
    called = pickle.dumps(Call(plugin.build, 1), protocol=2)
    monkeypatch.delitem(sys.modules, "my_plugin")
    assert to_plain(load_pickle(write(tmp_path / "named.pt", named, zipped))["config"]) == {"width": 5}
    assert "my_plugin" not in sys.modules
    inert = load_pickle(write(tmp_path / "called.pt", called, zipped))
    assert inert.origin == "my_plugin.build" and inert.arguments == (1,) and "my_plugin" not in sys.modules


class Choice(enum.Enum):
    relu = "relu"

    def __reduce_ex__(self, protocol):  # by its value, as in all versions of Python but 3.11.0 to 3.11.3
        return type(self), (self.value,)


def fake_omegaconf():
    """Classes that are pickled as OmegaConf's are: nodes with a value, containers with their content and parent."""
    places = {
        "omegaconf.dictconfig": "DictConfig",
        "omegaconf.listconfig": "ListConfig",
        "omegaconf.nodes": "AnyNode",
        "omegaconf.base": "Metadata",
    }
    modules = {name: types.ModuleType(name) for name in ("omegaconf", "fairseq", *places)}
    classes = {}
    for module, name in places.items():
        classes[name] = type(name, (), {"__module__": module})
        setattr(modules[module], name, classes[name])
    return modules, classes


def node(classes, value, parent=None):
    kinds = {dict: "DictConfig", list: "ListConfig"}
    made = classes[kinds.get(type(value), "AnyNode")]()
    made._metadata = classes["Metadata"]()
    made._metadata.object_type = type(value)
    made._parent = parent
    if isinstance(value, dict):
        made._content = {key: node(classes, item, made) for key, item in value.items()}
    elif isinstance(value, list):
        made._content = [node(classes, item, made) for item in value]
    else:
        made._val = value
    return made


def test_omegaconf_becomes_plain_and_references_are_followed(tmp_path, monkeypatch):
    modules, classes = fake_omegaconf()
    config = {
        "model": {"layers": 6, "shapes": [1, 2], "act": Choice.relu, "length": "${task.length}", "none": None},
        "task": {"length": "${data.length}", "name": "a ${b} c"},
        "data": {"length": 512},
    }
    with monkeypatch.context() as patch:
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        patch.setattr(Choice, "__module__", "fairseq.choices")
        choices = types.ModuleType("fairseq.choices")
        choices.Choice = Choice
        patch.setitem(sys.modules, "fairseq.choices", choices)
        pickled = pickle.dumps({"cfg": node(classes, config)}, protocol=2)
    loaded = load_pickle(write(tmp_path / "cfg.pt", pickled, zipped=True))
    assert to_plain(loaded["cfg"]) == {
        "model": {"layers": 6, "shapes": [1, 2], "act": "relu", "length": 512, "none": None},
        "task": {"length": 512, "name": "a ${b} c"},
        "data": {"length": 512},
    }


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_what_checkpoints_hold_is_read(zipped, tmp_path):
    shared = torch.arange(6.0).reshape(2, 3)
    contents = {
        "args": argparse.Namespace(layers=2, names=("a", "b"), path=pathlib.PurePosixPath("x")),
        "model": collections.OrderedDict(a=shared, b=shared.t(), c=torch.ones(2).half()),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "extra": {"loss": np.float64(3.5), "seen": {1, 2}, "by": collections.defaultdict(list, {1: [2]})},
    }
    torch.save(contents, tmp_path / "good.pt", _use_new_zipfile_serialization=zipped)
    loaded = load_pickle(tmp_path / "good.pt")
    assert to_plain(loaded["args"]) == {"layers": 2, "names": ("a", "b"), "path": "x"}
    assert torch.equal(loaded["model"]["b"], shared.t()) and loaded["model"]["c"].dtype == torch.float16
    assert torch.equal(loaded["parameter"], torch.ones(2))
    assert loaded["extra"]["seen"] == {1, 2} and loaded["extra"]["by"] == {1: [2]}


def number(value, size=8):
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little")


def text(value):
    return b"X" + len(value).to_bytes(4, "little") + value


ENCODE = b"c_codecs\nencode\n"
COSTS = "would take much more memory or time than its [0-9,]+ bytes"
GREEDY = {
    "key_of_doubled_tuples": (b"}K\x01" + 60 * b"q\x00h\x00\x86" + b"K\x01s.", COSTS),
    "value_of_a_set": (b"c__builtin__\nset\n]K\x01" + 60 * b"q\x00h\x00\x86" + b"a\x85R.", COSTS),
    "chained_codecs": (
        ENCODE
        + text(b"aa")
        + text(b"latin1")
        + b"\x86R"
        + 40 * (b"q\x00" + ENCODE + b"h\x00" + text(b"hex") + b"\x86R")
        + b".",
        COSTS,
    ),
    "bytearray": (b"c__builtin__\nbytearray\n" + number(1 << 34) + b"\x85R.", "names builtins.bytearray"),
    "tensor": (b"ctorch\nFloatTensor\n" + number(1 << 34) + b"\x85R.", "names torch.FloatTensor"),
    "names": (b"(" + b"".join(b"cplug\nn%d\n" % i for i in range(2_000)) + b"t.", "names more than 1,000 classes"),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("case", "zipped"),
    [(case, True) for case in GREEDY if case != "value_of_a_set"]
    + [(case, False) for case in GREEDY if case != "key_of_doubled_tuples"],  # both take the whole time
)
def test_small_files_that_would_take_memory_or_time_are_refused(case, zipped, tmp_path, monkeypatch):
    monkeypatch.setattr(pickles, "SECONDS", 1)
    pickled, message = GREEDY[case]
    path = write(tmp_path / "greedy.pt", b"\x80\x02" + pickled, zipped)
    with pytest.raises(InputError, match=rf"greedy\.pt: .*{message}"):
        load_pickle(path)


def test_a_zip_file_with_two_directories_runs_nothing(tmp_path, monkeypatch):
    """Its end points to the first directory, as PyTorch reads it; the second is before the end, as Python reads it."""
    monkeypatch.chdir(tmp_path)
    hidden = pickle.dumps(Call(os.mkdir, WITNESS), protocol=2)
    shown = pickle.dumps("x", protocol=2).ljust(len(hidden), b".")
    first, second = (write(tmp_path / "one.pt", pickled, zipped=True).read_bytes() for pickled in (hidden, shown))
    end = first.rindex(b"PK\x05\x06")
    assert first[end:] == second[end:]
    (tmp_path / "two.pt").write_bytes(first[:end] + second)
    with pytest.raises(InputError, match=r"two\.pt: cannot be read as a checkpoint of PyTorch: .*(posix|nt)"):
        load_pickle(tmp_path / "two.pt")
    assert not (tmp_path / WITNESS).exists()


def test_tensors_that_share_a_storage_are_read(tmp_path):
    values = torch.arange(24.0)
    good = {
        "view": values[2:8],
        "turned": values.view(2, 3, 4).permute(2, 0, 1)[1:],
        "none": values[:0],
        "one": values[5],
    }
    torch.save(good, tmp_path / "good.pt")
    loaded = load_pickle(tmp_path / "good.pt")
    assert loaded.keys() == good.keys() and all(torch.equal(loaded[name], good[name]) for name in good)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"K\x02K\x04\x86", b"K\x09K\x04\x86", "not resizable|wrong byte size"),
        (b"K\x02K\x04\x86", b"J\xff\xff\xff\x7fK\x04\x86", "more memory|not resizable"),
        (b"K\x04K\x01\x86", b"J\xff\xff\xff\xffK\x01\x86", "Storage size calculation overflowed"),
        (b"_rebuild_tensor_v2", b"_rebuild_sparse_tensor", r"names torch\._utils\._rebuild_sparse_tensor"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(old, new, message, zipped, tmp_path):
    torch.save(torch.arange(8.0).view(2, 4), tmp_path / "good.pt", _use_new_zipfile_serialization=zipped)
    whole = (tmp_path / "good.pt").read_bytes()
    path = tmp_path / "bad.pt"
    if zipped:
        with zipfile.ZipFile(tmp_path / "good.pt") as good, zipfile.ZipFile(path, "w") as bad:
            for name in good.namelist():
                bad.writestr(name, good.read(name).replace(old, new))
    else:
        assert old in whole
        path.write_bytes(whole.replace(old, new))
    with pytest.raises(InputError, match=rf"bad\.pt: .*({message})"):
        load_pickle(path)


def test_a_legacy_file_with_a_zip_file_behind_it_is_scanned_as_it_is_loaded(tmp_path):
    path = write(tmp_path / "evil.pt", pickle.dumps(Call(os.system, "true"), protocol=2), zipped=False)
    torch.save({}, tmp_path / "good.pt")
    path.write_bytes(path.read_bytes() + (tmp_path / "good.pt").read_bytes())
    assert zipfile.is_zipfile(path)
    with pytest.raises(InputError, match=r"the pickle names (posix|nt)\.system"):
        load_pickle(path)


@pytest.mark.parametrize(
    ("compression", "change", "message"),
    [
        (zipfile.ZIP_DEFLATED, lambda archive: None, "does not compress"),
        (zipfile.ZIP_STORED, lambda archive: archive.filelist.extend(archive.filelist[-1:] * 10), "does not compress"),
        (zipfile.ZIP_STORED, lambda archive: archive.writestr("good/DATA.PKL", pickle.dumps("x")), "no data.pkl"),
    ],
    ids=["compressed", "overlapping", "two pickles"],
)
def test_zip_files_that_torch_does_not_write_are_refused(compression, change, message, tmp_path):
    torch.save({"model": {"a": torch.zeros(1000)}}, tmp_path / "good.pt")
    with zipfile.ZipFile(tmp_path / "good.pt") as good, zipfile.ZipFile(tmp_path / "bad.pt", "w", compression) as bad:
        for name in sorted(good.namelist(), key=lambda name: good.getinfo(name).file_size):
            bad.writestr(name, good.read(name))
        change(bad)
    with pytest.raises(InputError, match=f"bad.pt: .*{message}"):
        load_pickle(tmp_path / "bad.pt")


def test_settings_that_repeat_themselves_are_refused(tmp_path):
    nested, doubled, cycle = [], [1], []
    cycle.append(cycle)
    for _ in range(60):
        nested, doubled = [nested], [doubled, doubled]
    for settings in (nested, doubled, cycle):
        torch.save({"args": argparse.Namespace(names=settings)}, tmp_path / "args.pt")
        with pytest.raises(InputError, match="settings have more than 100,000 values or 50 levels"):
            to_plain(load_pickle(tmp_path / "args.pt")["args"])


def test_control_characters_of_names_are_escaped(tmp_path):
    path = write(tmp_path / "evil.pt", b"\x80\x02cos\n\x1b[2J\n.", zipped=True)
    with pytest.raises(InputError) as error:
        load_pickle(path)
    assert r"names os.\x1b[2J," in str(error.value) and str(error.value).isprintable()


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "neither zip nor pickle"),
        (b"hello", "neither zip nor pickle"),
        (pickle.dumps({"a": 1}, protocol=2), "cannot be read as a checkpoint of PyTorch"),
        (b"\x80\x02}q\x00(U", "cannot be read as a checkpoint of PyTorch"),
    ],
    ids=["empty", "text", "bare_pickle", "cut"],
)
def test_other_files_are_named(contents, message, tmp_path):
    (tmp_path / "file.pt").write_bytes(contents)
    with pytest.raises(InputError, match=rf"file\.pt: .*{message}"):
        load_pickle(tmp_path / "file.pt")


def test_damaged_and_missing_files_are_named(tmp_path):
    with pytest.raises(InputError, match=r"no such file: .*none\.pt"):
        load_pickle(tmp_path / "none.pt")
    with pytest.raises(InputError, match="cannot be read"):
        load_pickle(tmp_path)
    torch.save({"model": {"a": torch.ones(1000)}}, tmp_path / "cut.pt")
    whole = (tmp_path / "cut.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cut\.pt"):
        load_pickle(tmp_path / "cut.pt")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", "x")
    with pytest.raises(InputError, match="not a zip file written by torch.save"):
        load_pickle(tmp_path / "other.zip")
