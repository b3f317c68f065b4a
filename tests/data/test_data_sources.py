"""Every source reads its publisher's format from tiny files; damaged files are named."""

import gzip
import struct

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from potluck.core.errors import PotluckError
from potluck.data import list_data, load_data
from potluck.data.sources import idx

RNG = np.random.default_rng(0)


def write_idx(path, array, zipped=True):
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if zipped else content)


@pytest.fixture
def mnist(tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    images = RNG.integers(0, 256, (5, 28, 28), dtype=np.uint8)
    write_idx(folder / "train-images-idx3-ubyte.gz", images[:3])
    write_idx(folder / "train-labels-idx1-ubyte.gz", np.array([1, 2, 9], np.uint8))
    write_idx(folder / "t10k-images-idx3-ubyte", images[3:], zipped=False)
    write_idx(folder / "t10k-labels-idx1-ubyte.gz", np.array([0, 1], np.uint8))
    return tmp_path, images


def test_idx_files_plain_and_gzipped(mnist):
    root, images = mnist
    data = load_data("mnist", root)
    assert data.y.tolist() == [1, 2, 9]
    assert data.test_y.tolist() == [0, 1]
    assert data.num_classes == 10
    np.testing.assert_array_equal(data.x[:, 0].numpy(), images[:3])
    np.testing.assert_array_equal(data.test_x[:, 0].numpy(), images[3:])
    x, _ = data.train.take(slice(None))
    np.testing.assert_allclose(x[1, 0].numpy(), (images[1] / 255 - 0.1307) / 0.3081, rtol=1e-5, atol=1e-5)


def test_fashion_mnist_is_read_from_the_debian_folder(mnist, monkeypatch, tmp_path):
    root, _ = mnist
    (root / "mnist").rename(root / "fashion-mnist")
    monkeypatch.setattr(idx, "DEBIAN", root)
    data = load_data("fashion-mnist", tmp_path / "elsewhere")
    assert data.class_names[9] == "Ankle boot"
    assert len(data) == 3


def cut(path, keep):
    path.write_bytes(path.read_bytes()[:keep])


@pytest.mark.parametrize(
    ("file", "keep", "says"),
    [
        ("t10k-images-idx3-ubyte", 1000, "984 values where the header says 1,568"),
        ("t10k-images-idx3-ubyte", 3, "not an IDX file"),
        ("train-images-idx3-ubyte.gz", 500, "end-of-stream"),
    ],
)
def test_a_truncated_idx_file_is_named(mnist, file, keep, says):
    root, _ = mnist
    cut(root / "mnist" / file, keep)
    with pytest.raises(PotluckError) as problem:
        load_data("mnist", root)
    assert f"{file}' is damaged or incomplete" in str(problem.value)
    assert says in str(problem.value)
    assert "delete it and fetch it again" in str(problem.value)


def test_labels_that_do_not_fit_the_images_are_named(mnist):
    root, _ = mnist
    write_idx(root / "mnist" / "t10k-labels-idx1-ubyte.gz", np.array([0], np.uint8))
    with pytest.raises(PotluckError, match=r"t10k-labels.*\(1 labels for 2 images"):
        load_data("mnist", root)
    write_idx(root / "mnist" / "t10k-labels-idx1-ubyte.gz", np.array([0, 77], np.uint8))
    with pytest.raises(PotluckError, match="label 77 of 10 classes"):
        load_data("mnist", root)


def write_cifar10(root, train=4, test=2):
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    pixels = RNG.integers(0, 256, (5 * train + test, 3072), dtype=np.uint8)
    labels = (np.arange(len(pixels)) % 10).astype(np.uint8)
    records = np.concatenate([labels[:, None], pixels], axis=1)
    for part in range(5):
        (folder / f"data_batch_{part + 1}.bin").write_bytes(
            records[part * train : (part + 1) * train].tobytes()
        )
    (folder / "test_batch.bin").write_bytes(records[5 * train :].tobytes())
    (folder / "batches.meta.txt").write_text("a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n\n")
    return folder, pixels


def test_cifar10_binary(tmp_path):
    _, pixels = write_cifar10(tmp_path)
    data = load_data("cifar10", tmp_path)
    assert repr(data) == ("Data('cifar10': 20 rows, 2 test rows, 10 classes, input 3×32×32, stored as uint8)")
    assert data.y.tolist() == [*range(10), *range(10)]
    assert data.test_y.tolist() == [0, 1]
    assert data.class_names[1] == "b"
    np.testing.assert_array_equal(data.x[7].numpy().reshape(-1), pixels[7])
    x, _ = data.train.take(slice(7, 8))
    red = (pixels[7, 0] / 255 - 0.485) / 0.229
    blue = (pixels[7, 3071] / 255 - 0.406) / 0.225
    assert x[0, 0, 0, 0].item() == pytest.approx(red, abs=1e-5)
    assert x[0, 2, 31, 31].item() == pytest.approx(blue, abs=1e-5)


def test_cifar100_uses_the_fine_label(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    record = np.zeros((3, 3074), np.uint8)
    record[:, 0], record[:, 1] = [4, 4, 5], [99, 0, 7]
    (folder / "train.bin").write_bytes(record.tobytes())
    (folder / "test.bin").write_bytes(record[:1].tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(f"n{i}" for i in range(100)) + "\n")
    data = load_data("cifar100", tmp_path)
    assert data.y.tolist() == [99, 0, 7]
    assert data.num_classes == 100


def test_a_truncated_cifar_file_is_named(tmp_path):
    folder, _ = write_cifar10(tmp_path)
    cut(folder / "data_batch_3.bin", 5000)
    with pytest.raises(
        PotluckError, match=r"data_batch_3\.bin' is damaged or incomplete \(5,000 bytes, which is not"
    ):
        load_data("cifar10", tmp_path)


def test_wrong_cifar_content_is_named(tmp_path):
    folder, _ = write_cifar10(tmp_path)
    (folder / "test_batch.bin").write_bytes(bytes([10]) + bytes(3072))
    with pytest.raises(PotluckError, match="label 10 of 10 classes"):
        load_data("cifar10", tmp_path)
    (folder / "test_batch.bin").write_bytes(b"")
    with pytest.raises(PotluckError, match="0 bytes"):
        load_data("cifar10", tmp_path)
    (folder / "test_batch.bin").write_bytes(bytes(3073))
    (folder / "batches.meta.txt").write_text("a\nb\n")
    with pytest.raises(PotluckError, match="2 class names instead of 10"):
        load_data("cifar10", tmp_path)


def test_missing_files_are_named_with_their_folders(tmp_path):
    with pytest.raises(PotluckError) as problem:
        load_data("cifar10", tmp_path)
    assert str(problem.value) == (
        f"Data 'cifar10' need the file 'data_batch_1.bin' (or 'data_batch_1.bin.gz') in "
        f"'{tmp_path}/cifar-10-batches-bin'; run 'potluck data prepare cifar10' or put it there."
    )


def test_svhn_turns_label_ten_into_zero(tmp_path):
    (tmp_path / "svhn").mkdir()
    images = RNG.integers(0, 256, (32, 32, 3, 3), dtype=np.uint8)
    savemat(tmp_path / "svhn" / "train_32x32.mat", {"X": images, "y": np.array([[10], [1], [9]], np.uint8)})
    savemat(tmp_path / "svhn" / "test_32x32.mat", {"X": images[..., :1], "y": np.array([[2]], np.uint8)})
    data = load_data("svhn", tmp_path)
    assert data.y.tolist() == [0, 1, 9]
    assert data.x[1, 2, 5, 6] == images[5, 6, 2, 1]
    cut(tmp_path / "svhn" / "test_32x32.mat", 900)
    with pytest.raises(PotluckError, match=r"test_32x32\.mat' is damaged or incomplete"):
        load_data("svhn", tmp_path)
    savemat(tmp_path / "svhn" / "test_32x32.mat", {"X": images, "y": np.array([[2]], np.uint8)})
    with pytest.raises(PotluckError, match="images of shape"):
        load_data("svhn", tmp_path)
    savemat(tmp_path / "svhn" / "test_32x32.mat", {"z": images})
    with pytest.raises(PotluckError, match="it has no array 'X'"):
        load_data("svhn", tmp_path)


def picture(path, colour, size=(10, 8), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def test_flowers102(tmp_path):
    folder = tmp_path / "flowers102"
    for encode_labels in range(1, 5):
        picture(folder / "jpg" / f"image_{encode_labels:05d}.jpg", (encode_labels * 40, 0, 0))
    savemat(folder / "imagelabels.mat", {"labels": np.array([[1, 2, 3, 2]])})
    savemat(folder / "setid.mat", {"trnid": [[3]], "valid": [[1]], "tstid": [[2, 4]]})
    data = load_data("flowers102", tmp_path)
    assert data.x.shape == (2, 3, 64, 64)
    assert data.y.tolist() == [2, 0]
    assert data.test_y.tolist() == [1, 1]
    assert data.x[0, 0].float().mean() == pytest.approx(120, abs=2)
    assert load_data("flowers102", tmp_path, image_size=16).input_shape == (3, 16, 16)
    (folder / "jpg" / "image_00004.jpg").unlink()
    with pytest.raises(PotluckError, match=r"image_00004\.jpg' is damaged or incomplete"):
        load_data("flowers102", tmp_path)


def test_tiny_imagenet(tmp_path):
    folder = tmp_path / "tiny-imagenet-200"
    for wnid, colour in (("n02", 200), ("n01", 100)):
        for encode_labels in range(2):
            picture(
                folder / "train" / wnid / "images" / f"{wnid}_{encode_labels}.JPEG", (0, colour, 0), (64, 64)
            )
    picture(folder / "val" / "images" / "val_0.JPEG", (0, 200, 0), (64, 64))
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t9\t9\n")
    (folder / "wnids.txt").write_text("n02\nn01\n")
    data = load_data("tiny-imagenet", tmp_path)
    assert data.y.tolist() == [0, 0, 1, 1]
    assert data.class_names == ("n01", "n02")
    assert data.test_y.tolist() == [1]
    assert data.x[0, 1, 0, 0] == pytest.approx(100, abs=2)
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn77\t0\n")
    with pytest.raises(PotluckError, match="names no known class"):
        load_data("tiny-imagenet", tmp_path)


def write_har(root):
    home = root / "har" / "UCI HAR Dataset"
    for part, persons, labels in (("train", [3, 1, 3], [1, 6, 2]), ("test", [2], [5])):
        (home / part / "Inertial Signals").mkdir(parents=True)
        (home / part / f"y_{part}.txt").write_text("\n".join(map(str, labels)) + "\n")
        (home / part / f"subject_{part}.txt").write_text("\n".join(map(str, persons)) + "\n")
        for kind in ("body_gyro", "total_acc", "body_acc"):
            for axis in "xyz":
                level = {"body_gyro": 1, "total_acc": 2, "body_acc": 3}[kind] + "xyz".index(axis) / 10
                rows = [" ".join(["%.7e" % (level + 10 * person)] * 128) for person in persons]
                (home / part / "Inertial Signals" / f"{kind}_{axis}_{part}.txt").write_text(
                    "\n".join(rows) + "\n"
                )
    return home


def test_har_pools_both_parts_by_person(tmp_path):
    write_har(tmp_path)
    data = load_data("har", tmp_path)
    assert data.x.shape == (4, 6, 128)
    assert data.groups.tolist() == [1, 2, 3, 3]
    assert data.y.tolist() == [5, 4, 0, 1]
    assert data.test is None
    np.testing.assert_allclose(data.x[1, :, 7].numpy(), [21, 21.1, 21.2, 22, 22.1, 22.2], rtol=1e-6)


def test_har_in_its_compact_form_is_the_same_data(tmp_path):
    (tmp_path / "har").mkdir()
    x = np.full((2, 6, 128), 1500, np.int16)
    np.savez(
        tmp_path / "har" / "uci_har_6ch.npz", x=x, y=np.array([5, 0], np.uint8), subject=np.array([1, 30])
    )
    data = load_data("har", tmp_path)
    assert data.x[0, 0, 0] == 1.5
    assert data.groups.tolist() == [1, 30]
    assert data.num_classes == 6
    cut(tmp_path / "har" / "uci_har_6ch.npz", 300)
    with pytest.raises(PotluckError, match=r"uci_har_6ch\.npz' is damaged"):
        load_data("har", tmp_path)


def test_a_short_har_file_is_named(tmp_path):
    home = write_har(tmp_path)
    file = home / "train" / "Inertial Signals" / "total_acc_y_train.txt"
    file.write_text(file.read_text().splitlines()[0] + "\n")
    with pytest.raises(
        PotluckError, match=r"total_acc_y_train\.txt' is damaged.*1 lines where the labels have 3"
    ):
        load_data("har", tmp_path)


def test_the_list_of_sources_has_a_line_for_each():
    names = [source.name for source in list_data()]
    assert names[0] == "digits"
    assert len(names) == len(set(names))
    assert all(source.about for source in list_data())


@pytest.mark.parametrize("name", ["cifar", "cifar10:x", "folder", "npz"])
def test_unknown_names(name):
    with pytest.raises(PotluckError, match="Unknown data set"):
        load_data(name)


def test_options_that_mean_nothing_here_are_refused(tmp_path):
    with pytest.raises(PotluckError, match="image_size is 0; it must be at least 1"):
        load_data("flowers102", tmp_path, image_size=0)
    with pytest.raises(
        PotluckError, match=r"Data 'digits' take no label \(given: 'y'\); leave out data.label"
    ):
        load_data("digits", label="y")


def test_rows_are_shared_memory_not_copies(tmp_path):
    write_cifar10(tmp_path)
    load_data("cifar10", tmp_path)
    first_load, two = load_data("cifar10", tmp_path), load_data("cifar10", tmp_path)
    assert torch.equal(first_load.x, two.x)
    assert first_load.merged().x.data_ptr() == first_load.x.data_ptr()
    first_load.x[0] = 0  # copy-on-write: my change is mine alone
    assert not torch.equal(first_load.x, two.x)
    assert torch.equal(two.x, load_data("cifar10", tmp_path).x)
